//! Tests of the view of a job.

use serde_json::{Value, json};

use super::*;

fn job(status: &Value) -> RLJob {
    let mut job = crate::validate::test_support::minimal();
    job.status = Some(serde_json::from_value(status.clone()).unwrap());
    job
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn pod(role: &str, ordinal: u32, status: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("sums-{role}-{ordinal}"), "labels": {"rljob.dev/role": role},
        },
        "spec": {"nodeName": "node-1"}, "status": status,
    }))
    .unwrap()
}

#[test]
fn pods_are_listed_by_role_with_their_engines() {
    let status = json!({
        "inference": {
            "desired": 2, "ready": 1, "engines": [{
                "name": "sums-inference-1", "state": "Ready", "version": "step-3.attempt-0",
            }],
        },
    });
    let up = json!({"conditions": [{"type": "ContainersReady", "status": "True"}]});
    let pods = [
        pod("inference", 1, &up),
        pod("inference", 0, &json!({"phase": "Pending"})),
        pod("coordinator", 0, &up),
    ];
    let roles = view(&job(&status), Ok(&pods)).roles;
    let counts: Vec<_> = roles.iter().map(|role| (role.role, role.desired, role.ready)).collect();
    assert_eq!(counts, [("coordinator", 1, 1), ("inference", 2, 1), ("trainer", 0, 0)]);
    let view = |ordinal: u32, state: &str, engine, weights: Option<&str>| PodView {
        name: format!("sums-inference-{ordinal}"),
        node: Some("node-1".to_owned()),
        state: state.to_owned(),
        restarts: 0,
        engine,
        weights: weights.map(ToOwned::to_owned),
    };
    let ready = Some(EngineStanding::Ready);
    let expected =
        [view(0, "Pending", None, None), view(1, "Ready", ready, Some("step-3.attempt-0"))];
    assert_eq!(roles[1].pods, expected);
}

#[test]
fn a_job_waits_for_its_unmet_conditions_until_it_ends() {
    let unmet = |succeeded: &str| {
        json!({"conditions": [
            condition("Succeeded", succeeded, "Starting", "waits for pods"),
            condition("Ready", "False", "Starting", "waits for pods"),
            condition("Stalled", "False", "AsExpected", ""),
            condition("InferenceReady", "False", "PodsNotReady", "sums-inference-0"),
            condition("TrainerReady", "False", "NotWanted", ""),
            condition("WeightsSynced", "True", "Synced", ""),
        ]})
    };
    let waits = |status: &str| {
        let view = view(&job(&unmet(status)), Ok(&[]));
        view.waits_for.into_iter().map(|wait| wait.condition).collect::<Vec<_>>()
    };
    assert_eq!(waits("Unknown"), ["Ready", "InferenceReady"]);
    assert_eq!(waits("False"), Vec::<String>::new());
}
