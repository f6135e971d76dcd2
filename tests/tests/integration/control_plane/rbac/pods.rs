//! Permissions for pods and events, in the lifecycle of a job from its start to the deletion of its
//! children.

use rljob_tests::Namespace;
use rljob_tests::process::wait_until;
use serde_json::json;

use super::super::operator::{
    KINDS, LIMIT, OWN, Operator, apply_job, field, patch, wait_for_condition, wait_for_pods,
};
use super::super::pods::{bind, pod_uids, set_status};
use super::installation::Installation;

/// Closes the gate of an engine, deletes a lost pod, reads why a pod is missing, and publishes the
/// event of a suspension: each without its permission, and then with it.
pub(super) fn remove(installation: &Installation, operator: &Operator) {
    let namespace = installation.namespace;
    let started = json!({"spec": {"drainTimeoutSeconds": 1, "inference": {"replicas": 2}}});
    apply_job(namespace, &started);
    wait_for_pods(namespace, 4);
    let gates = installation.permissions("", "pods/status", &["patch"]);
    installation.without(&gates, || {
        restart_engine(namespace);
        operator
    });
    let gate = ".status.conditions[?(@.type=='rljob.dev/weights-synced')].status";
    wait_until("the engine's gate to be closed", LIMIT, || {
        Ok(field(namespace, "pod/sample-inference-0", gate) == "False")
    })
    .unwrap();

    let deletions = installation.permissions("", "pods", &["delete"]);
    let reads = installation.permissions("events.k8s.io", "events", &["list"]);
    let lost = field(namespace, "pod/sample-trainer-0", ".metadata.uid");
    installation.without(&[deletions, reads].concat(), || {
        lose_pod(namespace, "sample-trainer-0");
        deny_pod(namespace, "sample-inference-1");
        operator
    });
    namespace.kubectl.run(&["delete", "resourcequota/none"]).unwrap();
    let replaced = || {
        let uids = pod_uids(namespace)?;
        Ok(uids.len() == 4 && !uids.contains(&lost))
    };
    wait_until("the replacement of the lost pods", LIMIT, replaced).unwrap();
    let events = installation.permissions("events.k8s.io", "events", &["create"]);
    installation.without(&events, || {
        patch(namespace, &json!({"suspend": true}));
        operator
    });
    end(namespace);
}

/// Sets the status of an engine whose container restarted after its gate was opened; the operator
/// closes the gate.
fn restart_engine(namespace: &Namespace) {
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let container = json!({
        "name": "inference", "image": "", "imageID": "", "containerID": "containerd://c2",
        "ready": true, "restartCount": 1, "state": running,
    });
    let gate = json!({
        "type": "rljob.dev/weights-synced", "status": "True",
        "message": "container containerd://c1 holds weights of the run",
    });
    set_status(
        namespace,
        "sample-inference-0",
        &json!({
            "startTime": "2026-01-01T00:00:00Z", "phase": "Running", "conditions": [gate],
            "containerStatuses": [container],
        }),
    );
}

/// Deletes a pod that no kubelet terminates; the operator force-deletes it.
fn lose_pod(namespace: &Namespace, pod: &str) {
    bind(namespace, pod);
    namespace.kubectl.run(&["delete", &format!("pod/{pod}"), "--wait=false"]).unwrap();
}

/// Denies the replacement of a pod by a quota; the operator reads the reason in the events.
fn deny_pod(namespace: &Namespace, pod: &str) {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
        "spec": {"hard": {"pods": "0"}},
    });
    namespace.kubectl.apply(&quota.to_string()).unwrap();
    let delete = ["delete", &format!("pod/{pod}"), "--grace-period=0", "--force"];
    namespace.kubectl.run(&delete).unwrap();
}

/// Resumes the job, suspends and resumes it again, and lets it end and expire.
fn end(namespace: &Namespace) {
    for _ in 0..2 {
        patch(namespace, &json!({"suspend": true}));
        wait_for_condition(namespace, "Suspended");
        patch(namespace, &json!({"suspend": false, "inference": {"replicas": 3}}));
        wait_for_pods(namespace, 5);
    }
    patch(namespace, &json!({"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0}));
    wait_for_condition(namespace, "Stalled");
    wait_until("the children to be deleted", LIMIT, || {
        Ok(namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"])?.is_empty())
    })
    .unwrap();
    namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
}
