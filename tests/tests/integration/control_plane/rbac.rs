//! The operator's RBAC permissions are necessary and sufficient, for all namespaces and for one. An
//! operator with the permissions of install.yaml, or of a release for one namespace, runs the
//! complete lifecycle of a job; the audit log shows each request and the binding that allowed it,
//! which must match the granted permissions exactly.

use std::collections::BTreeSet;

use rljob_tests::process::wait_until;
use rljob_tests::{AuditedRequest, Cluster, Helm, Namespace};
use serde_json::{Value, json};

use super::operator::{
    self, ACCOUNT, KINDS, LIMIT, OWN, Operator, SYSTEM, apply_job, field, patch,
    wait_for_condition, wait_for_permissions, wait_for_pods,
};
use super::pods::{bind, pod_uids, set_status};

use self::permissions::{Permission, Role, granted};

pub(super) mod permissions;
mod queues;

/// Sets the status of an engine whose container restarted after its gate was opened; the operator
/// closes the gate.
fn restart_engine(namespace: &Namespace) {
    let engine = "sample-inference-0";
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
        engine,
        &json!({
            "startTime": "2026-01-01T00:00:00Z", "phase": "Running", "conditions": [gate],
            "containerStatuses": [container],
        }),
    );
    let path = ".status.conditions[?(@.type=='rljob.dev/weights-synced')].status";
    wait_until("the engine's gate to be closed", LIMIT, || {
        Ok(field(namespace, &format!("pod/{engine}"), path) == "False")
    })
    .unwrap();
}

/// Deletes a pod that no kubelet terminates; the operator force-deletes it.
fn lose_pod(namespace: &Namespace, pod: &str) {
    bind(namespace, pod);
    let before = field(namespace, &format!("pod/{pod}"), ".metadata.uid");
    namespace.kubectl.run(&["delete", &format!("pod/{pod}"), "--wait=false"]).unwrap();
    let replaced = || {
        let uids = pod_uids(namespace)?;
        Ok(uids.len() == 3 && !uids.contains(&before))
    };
    wait_until("the replacement of the lost pod", LIMIT, replaced).unwrap();
}

/// Denies the replacement of a pod by a quota; the operator reads the reason in the events.
fn deny_pod(namespace: &Namespace) {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
        "spec": {"hard": {"pods": "0"}},
    });
    namespace.kubectl.apply(&quota.to_string()).unwrap();
    let pod = "pod/sample-trainer-0";
    namespace.kubectl.run(&["delete", pod, "--grace-period=0", "--force"]).unwrap();
    let message = ".status.conditions[?(@.type=='Ready')].message";
    wait_until("the quota to be in the status", LIMIT, || {
        Ok(field(namespace, "rljob/sample", message).contains("exceeded quota: none"))
    })
    .unwrap();
    namespace.kubectl.run(&["delete", "resourcequota/none"]).unwrap();
    wait_for_pods(namespace, 3);
}

/// Runs the lifecycle from the start of a job to the deletion of its children.
fn run_lifecycle(namespace: &Namespace) {
    apply_job(namespace, &json!({"spec": {"drainTimeoutSeconds": 1}}));
    wait_for_pods(namespace, 3);
    restart_engine(namespace);
    deny_pod(namespace);
    lose_pod(namespace, "sample-trainer-0");
    // The second suspension creates a separate event.
    for _ in 0..2 {
        patch(namespace, &json!({"suspend": true}));
        wait_for_condition(namespace, "Suspended");
        patch(namespace, &json!({"suspend": false, "inference": {"replicas": 2}}));
        wait_for_pods(namespace, 4);
    }
    patch(namespace, &json!({"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0}));
    wait_for_condition(namespace, "Stalled");
    wait_until("the children to be deleted", LIMIT, || {
        Ok(namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"])?.is_empty())
    })
    .unwrap();
    delete_job(namespace);
}

fn can(namespace: &Namespace, permission: &Permission) -> bool {
    let (resource, subresource) =
        permission.resource.split_once('/').unwrap_or((&permission.resource, ""));
    let resource = format!("{resource}.{}", permission.group);
    let (account, subresource) =
        (format!("--as={ACCOUNT}"), format!("--subresource={subresource}"));
    let resource = resource.trim_end_matches('.');
    let ask = ["auth", "can-i", &permission.verb, resource, &account, &subresource];
    // kubectl exits with 1 if the answer is no.
    namespace.kubectl.run(&ask).is_ok()
}

/// Removes one permission, starts a job, modified by a merge patch, in the namespace, and returns
/// the message of its condition `Stalled`.
pub(super) fn without(namespace: &Namespace, permission: &Permission, job: &Value) -> String {
    let kubectl = &namespace.kubectl;
    let role = format!("{}/{}", permission.role.kind, permission.role.name);
    let mut rules = kubectl.get(&[&role]).unwrap()["rules"].take();
    let replace = |rules: &Value| {
        let patch = json!({ "rules": rules }).to_string();
        kubectl.run(&["patch", &role, "--type=merge", "--patch", &patch]).unwrap();
    };
    let before = rules.clone();
    for rule in rules.as_array_mut().unwrap() {
        if rule["apiGroups"] == json!([permission.group])
            && rule["resources"] == json!([permission.resource])
        {
            rule["verbs"].as_array_mut().unwrap().retain(|verb| *verb != permission.verb);
        }
    }
    rules.as_array_mut().unwrap().retain(|rule| rule["verbs"] != json!([]));
    replace(&rules);
    wait_until("the permission to be removed", LIMIT, || Ok(!can(namespace, permission))).unwrap();
    apply_job(namespace, job);
    wait_for_condition(namespace, "Stalled");
    let message =
        field(namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message");
    replace(&before);
    wait_until("the permission to be restored", LIMIT, || Ok(can(namespace, permission))).unwrap();
    delete_job(namespace);
    message
}

/// Deletes the job and waits until the garbage collector has deleted its children.
fn delete_job(namespace: &Namespace) {
    namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
    wait_until("the children to be deleted", LIMIT, || {
        // A node without a kubelet ends no pod.
        let end = ["delete", "pods", OWN, "--grace-period=0", "--force", "--ignore-not-found"];
        namespace.kubectl.run(&end)?;
        Ok(namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"])?.is_empty())
    })
    .unwrap();
}

/// Compares the permissions of roles with the requests so far, and returns them.
fn assert_all_are_used<'a>(cluster: &Cluster, roles: [Role<'a>; 2]) -> Vec<Permission<'a>> {
    let requests = cluster.audited_requests().unwrap();
    let granted: Vec<Permission> =
        roles.into_iter().flat_map(|role| granted(cluster, role)).collect();
    let unauthorized: BTreeSet<&AuditedRequest> = requests
        .iter()
        .filter(|request| !granted.iter().any(|permission| permission.allows(request)))
        .collect();
    assert_eq!(unauthorized, BTreeSet::new(), "requests without a matching permission");
    let mut unused: Vec<&Permission> = granted
        .iter()
        .filter(|permission| !requests.iter().any(|request| permission.allows(request)))
        .collect();
    // No request uses the finalizers permission directly; the admission plugin checks it for owner
    // references.
    let finalizers = finalizers(roles[0]);
    unused.retain(|permission| **permission != finalizers);
    assert_eq!(unused, Vec::<&Permission>::new(), "unused permissions");
    granted
}

fn finalizers(role: Role<'_>) -> Permission<'_> {
    Permission::new(role, "rljob.dev", "rljobs/finalizers", "update")
}

/// Namespaces of the requests so far, without those of some verbs.
fn namespaces(cluster: &Cluster, except: &[&str]) -> BTreeSet<String> {
    let requests = cluster.audited_requests().unwrap().into_iter();
    requests
        .filter(|request| !except.contains(&request.verb.as_str()))
        .map(|request| request.namespace)
        .collect()
}

/// Each permission to create objects is needed, and reported if it is missing.
fn assert_all_are_needed(namespace: &Namespace, role: Role<'_>, granted: &[Permission]) {
    let creates = |permission: &&Permission| {
        permission.role == role
            && permission.verb == "create"
            && permission.group != "events.k8s.io"
    };
    for permission in granted.iter().filter(creates) {
        let message = without(namespace, permission, &json!({}));
        assert!(
            message.contains(&format!("cannot create resource \"{}\"", permission.resource)),
            "without {permission:?}: {message}"
        );
    }
    let message = without(namespace, &finalizers(role), &json!({}));
    assert!(
        message.contains(
            "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set \
                finalizers on",
        ),
        "{message}",
    );
}

#[test]
fn permissions_for_all_namespaces_are_necessary_and_sufficient() {
    let cluster = Cluster::start_strict(ACCOUNT).unwrap();
    operator::install(&cluster.kubectl()).unwrap();
    super::install_crd(&cluster.kubectl()).unwrap();
    let operator = Operator::start_in(&cluster, "rljob:a", &["--leader-elect"]);
    let namespace = Namespace::create(&cluster, "rights").unwrap();
    run_lifecycle(&namespace);
    let role = |kind| Role { kind, namespace: SYSTEM, name: "rljob-operator" };
    let granted = assert_all_are_used(&cluster, [role("ClusterRole"), role("Role")]);
    assert_eq!(
        namespaces(&cluster, &["list", "watch"]),
        [namespace.name.clone(), SYSTEM.to_owned()].into(),
        "requests outside the namespaces of the operator and its jobs"
    );
    assert_all_are_needed(&namespace, role("ClusterRole"), &granted);
    drop(operator);
}

#[test]
fn permissions_for_one_namespace_are_necessary_and_sufficient() {
    let cluster = Cluster::start_strict(ACCOUNT).unwrap();
    let namespace = Namespace::create(&cluster, "rights").unwrap();
    let helm = Helm::new(cluster.kubeconfig(), SYSTEM).unwrap();
    let values = format!("--set=jobs.allowHostPath=true,jobs.namespace={}", namespace.name);
    helm.run(&["install", "rljob", &Helm::chart(), &values, "--create-namespace"]).unwrap();
    super::wait_for_crd(&cluster.kubectl()).unwrap();
    wait_for_permissions(&cluster.kubectl(), SYSTEM, &namespace.name).unwrap();
    let operator = Operator::start_deployed(&cluster, SYSTEM);
    run_lifecycle(&namespace);
    let jobs = Role { kind: "Role", namespace: &namespace.name, name: "rljob-operator-jobs" };
    let own = Role { kind: "Role", namespace: SYSTEM, name: "rljob-operator" };
    let granted = assert_all_are_used(&cluster, [jobs, own]);
    assert_eq!(
        namespaces(&cluster, &[]),
        [namespace.name.clone(), SYSTEM.to_owned()].into(),
        "requests outside the namespaces of the operator and its jobs"
    );
    assert_all_are_needed(&namespace, jobs, &granted);
    drop(operator);
}
