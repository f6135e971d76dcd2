//! Tests of facts of pods.

use k8s_openapi::api::core::v1::PodReadinessGate;
use serde_json::{Value, json};

use super::*;

fn pod(metadata: &Value, status: &Value) -> Pod {
    let mut all = json!({
        "metadata": { "name": "sums-trainer-3", "uid": "u", "resourceVersion": "7" },
        "spec": { "containers": [], "nodeName": "node-2" },
        "status": status,
    });
    all["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn ready(status: &str, reason: &Value) -> Value {
    let condition = json!({
        "type": "Ready",
        "status": status,
        "reason": reason,
        "lastTransitionTime": "2027-01-15T07:01:00Z",
    });
    json!({ "startTime": "2027-01-15T07:00:00Z", "conditions": [condition] })
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn healthy() -> PodFacts {
    PodFacts {
        role: Role::Trainer,
        ordinal: 3,
        name: "sums-trainer-3".to_owned(),
        uid: "u".to_owned(),
        resource_version: Some("7".to_owned()),
        node: Some("node-2".to_owned()),
        wanted: true,
        deletion: None,
        acknowledged: true,
        unresponsive: false,
        up_since: Some(at("2027-01-15T07:01:00Z")),
        container: None,
        last_exit: None,
        gate: None,
        disruption: None,
        failed: None,
    }
}

#[test]
fn readiness_node_and_deletion_are_read() {
    let (nothing, none) = (json!({}), json!(null));
    assert_eq!(read(&pod(&nothing, &ready("True", &none)), Role::Trainer, true), healthy());
    assert_eq!(
        read(&pod(&nothing, &ready("False", &json!("ContainersNotReady"))), Role::Trainer, true),
        PodFacts { up_since: None, ..healthy() }
    );
    let lost = PodFacts { up_since: None, unresponsive: true, ..healthy() };
    assert_eq!(
        read(&pod(&nothing, &ready("False", &none)), Role::Trainer, true),
        lost,
        "a kubelet always gives a reason"
    );
    let new = PodFacts { up_since: None, acknowledged: false, wanted: false, ..healthy() };
    assert_eq!(read(&pod(&nothing, &nothing), Role::Trainer, false), new);
}

#[test]
fn deletion_disruption_and_failure_are_read() {
    let metadata = json!({
        "deletionTimestamp": "2027-01-15T08:00:30Z",
        "deletionGracePeriodSeconds": 30,
    });
    let target = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    });
    let status = json!({
        "phase": "Failed",
        "reason": "Evicted",
        "message": "low on memory",
        "conditions": [target],
    });
    let expected = PodFacts {
        deletion: Some(Deletion {
            requested_at: at("2027-01-15T08:00:00Z"),
            deadline: at("2027-01-15T08:00:30Z"),
        }),
        acknowledged: false,
        up_since: None,
        disruption: Some(cause(Some("EvictionByEvictionAPI"), Some("Eviction API: evicting"))),
        failed: Some(cause(Some("Evicted"), Some("low on memory"))),
        ..healthy()
    };
    assert_eq!(read(&pod(&metadata, &status), Role::Trainer, true), expected);
}

#[test]
fn a_closed_gate_does_not_make_an_engine_unready() {
    let mut status = ready("False", &json!("ReadinessGatesNotReady"));
    status["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "type": "ContainersReady", "status": "True" }));
    let mut engine = pod(&json!({}), &status);
    assert!(!is_up(&engine));
    engine.spec.readiness_gates = vec![PodReadinessGate { condition_type: "a/b".to_owned() }];
    assert!(is_up(&engine));
    assert_eq!(read(&engine, Role::Inference, true).gate, None, "a gate of another controller");
}

#[test]
fn container_last_exit_and_gate_are_read() {
    let gate = json!({ "type": "rljob.dev/weights-synced", "status": "True", "message": "for c2" });
    let terminated = json!({
        "exitCode": 137,
        "reason": "OOMKilled",
        "message": r#"{"timestamp":"t","level":"ERROR","message":"lost","role":"inference"}"#,
        "finishedAt": "2027-01-15T07:59:58Z",
    });
    let container = json!({
        "name": "engine", "image": "", "imageID": "", "ready": true, "restartCount": 3,
        "containerID": "c2",
        "state": { "running": { "startedAt": "2027-01-15T08:00:00Z" } },
        "lastState": { "terminated": terminated },
    });
    let mut sidecar = container.clone();
    sidecar["name"] = "a-sidecar".into();
    sidecar["containerID"] = "c1".into();
    let status = json!({ "conditions": [gate], "containerStatuses": [sidecar, container] });
    let mut engine = pod(&json!({}), &status);
    engine.spec.readiness_gates =
        vec![PodReadinessGate { condition_type: GATE_WEIGHTS_SYNCED.to_owned() }];
    let facts = read(&engine, Role::Inference, true);
    assert_eq!(
        facts.container,
        Some(Container { id: "c2".to_owned(), since: at("2027-01-15T08:00:00Z") })
    );
    let (name, reason, message) =
        ("sums-trainer-3".to_owned(), "OOMKilled".to_owned(), "error: lost".to_owned());
    let exit = Exit { role: Role::Inference.into(), name, reason, exit_code: 137, message };
    assert_eq!(
        facts.last_exit,
        Some(ContainerExit { exit, at: at("2027-01-15T07:59:58Z"), restarts: 3 })
    );
    assert_eq!(facts.gate, Some(Gate { open: true, message: "for c2".to_owned() }));
}
