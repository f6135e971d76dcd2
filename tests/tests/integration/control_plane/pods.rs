//! Evicted, lost and vanished pods. Without a kubelet, the test binds pods to a nonexistent node
//! and writes the status that kubelet and the node controller would write.

use rljob_tests::Namespace;
use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::operator::{LIMIT, OWN, Operator, field, namespace_with, status, wait_for_pods};

/// Binds a pod to a nonexistent node.
pub(super) fn bind(namespace: &Namespace, pod: &str) {
    bind_to(namespace, pod, "ghost");
}

/// Binds a pod, as a scheduler does.
pub(super) fn bind_to(namespace: &Namespace, pod: &str, node: &str) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"kind": "Node", "name": node},
    });
    post(namespace, pod, "binding", &binding);
}

fn post(namespace: &Namespace, pod: &str, subresource: &str, body: &Value) {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/{subresource}", namespace.name);
    namespace
        .kubectl
        .run_with_input(&["create", "--raw", &path, "--filename=-"], &body.to_string())
        .unwrap();
}

/// Patches a pod's status, as kubelet and controllers do.
pub(super) fn set_status(namespace: &Namespace, pod: &str, status: &Value) {
    let patch = json!({"status": status}).to_string();
    namespace
        .kubectl
        .run(&["patch", &format!("pod/{pod}"), "--subresource=status", "--patch", &patch])
        .unwrap();
}

fn incidents(namespace: &Namespace) -> Vec<(String, String, String)> {
    let status = status(namespace).unwrap();
    let text = |incident: &Value, key: &str| incident[key].as_str().unwrap_or_default().to_owned();
    let list = status["incidents"].as_array().cloned().unwrap_or_default();
    list.iter()
        .map(|incident| (text(incident, "reason"), text(incident, "pod"), text(incident, "node")))
        .collect()
}

/// Waits until this is the only incident.
fn wait_for_incident(namespace: &Namespace, reason: &str, pod: &str) {
    let expected = [(reason.to_owned(), pod.to_owned(), "ghost".to_owned())];
    wait_until(&format!("{reason} of {pod}"), LIMIT, || Ok(incidents(namespace) == expected))
        .unwrap();
}

/// UIDs of a job's pods.
pub(super) fn pod_uids(namespace: &Namespace) -> anyhow::Result<Vec<String>> {
    let path = "--output=jsonpath={.items[*].metadata.uid}";
    let uids = namespace.kubectl.run(&["get", "pods", OWN, path])?;
    Ok(uids.split_whitespace().map(ToOwned::to_owned).collect())
}

fn uid(namespace: &Namespace, pod: &str) -> String {
    field(namespace, &format!("pod/{pod}"), ".metadata.uid")
}

/// Reasons of the job's events about a pod.
fn events(namespace: &Namespace, pod: &str) -> Vec<String> {
    let path = "--output=jsonpath={range .items[*]}{.reason} {.message}{\"\\n\"}{end}";
    let text = namespace
        .kubectl
        .run(&["get", "events", "--field-selector=involvedObject.name=sample", path])
        .unwrap();
    text.lines()
        .filter(|line| line.contains(&format!(" {pod} on ghost ")))
        .filter_map(|line| line.split(' ').next())
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn a_pod_on_an_unreachable_node_is_recorded_force_deleted_and_replaced() {
    let namespace = namespace_with("lost", &json!({}));
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let pod = "sample-trainer-0";
    let before = uid(&namespace, pod);
    bind(&namespace, pod);
    // The state after kubelet started the pod and the node controller marked it as not ready, with
    // an empty reason.
    set_status(
        &namespace,
        pod,
        &json!({
            "startTime": "2026-01-01T00:00:00Z", "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
        }),
    );
    wait_for_incident(&namespace, "NodeNotReady", pod);
    let message = format!(
        "pod {pod} on ghost is unresponsive: its node is not ready; \
            unless the node recovers, the pod is replaced"
    );
    assert_eq!(field(&namespace, "rljob/sample", ".status.incidents[0].message"), message);
    namespace.kubectl.run(&["delete", &format!("pod/{pod}"), "--wait=false"]).unwrap();
    wait_until("the replacement of the pod", LIMIT, || {
        let uids = pod_uids(&namespace)?;
        Ok(uids.len() == 3 && !uids.contains(&before))
    })
    .unwrap();
    wait_for_incident(&namespace, "PodLost", pod);
    wait_until("both events", LIMIT, || Ok(events(&namespace, pod) == ["NodeNotReady", "PodLost"]))
        .unwrap();
    assert_eq!(status(&namespace).unwrap()["restarts"], 0);
    let counted = |reason: &str| {
        operator
            .metric(&format!("rljob_incidents_total{{reason=\"{reason}\",role=\"trainer\"}}"))
            .unwrap() as u64
    };
    assert_eq!([counted("NodeNotReady"), counted("PodLost")], [1, 1]);
    assert!(
        !operator.output().contains("forbidden"),
        "the service account lacks a permission:\n{}",
        operator.output()
    );
}

#[test]
fn evicted_and_vanished_pods_are_incidents_and_not_restarts() {
    let namespace = namespace_with("evicted", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let (engine, coordinator) = ("sample-inference-0", "sample-coordinator-0");
    bind(&namespace, engine);
    // The pod is running, and its kubelet has the grace period to terminate it.
    set_status(
        &namespace,
        engine,
        &json!({"startTime": "2026-01-01T00:00:00Z", "phase": "Running"}),
    );
    post(
        &namespace,
        engine,
        "eviction",
        &json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": engine}}),
    );
    wait_for_incident(&namespace, "Evicted", engine);
    let message = format!(
        "pod {engine} on ghost was evicted; its StatefulSet will recreate it; \
            not counted as a restart"
    );
    assert_eq!(field(&namespace, "rljob/sample", ".status.incidents[0].message"), message);

    let before = uid(&namespace, coordinator);
    wait_until("the operator to observe the coordinator's pod", LIMIT, || {
        Ok(status(&namespace)?["epoch"] == 1)
    })
    .unwrap();
    namespace
        .kubectl
        .run(&["delete", &format!("pod/{coordinator}"), "--grace-period=0", "--force"])
        .unwrap();
    wait_until("a new coordinator pod", LIMIT, || Ok(status(&namespace)?["epoch"] == 2)).unwrap();
    let seen = incidents(&namespace);
    let seen: Vec<(&str, &str)> =
        seen.iter().map(|(reason, pod, _)| (reason.as_str(), pod.as_str())).collect();
    // Depending on the watch, the operator observes the deletion or only the absence.
    let gone = |reason| [("Evicted", engine), (reason, coordinator)];
    assert!(seen == gone("Vanished") || seen == gone("Deleted"), "{seen:?}");
    assert_ne!(before, uid(&namespace, coordinator));
    assert_eq!(status(&namespace).unwrap()["restarts"], 0);
}
