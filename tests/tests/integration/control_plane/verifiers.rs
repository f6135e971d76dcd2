//! Verifier pods: their number follows the reported load, and the coordinator gets their addresses.

use std::collections::BTreeSet;

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::fixture::Fixture;
use super::operator::LIMIT;

const SPEC: &str = r#"{
    "rewards": [{"name": "tests", "code": {}}],
    "verifiers": {"minReplicas": 1, "maxReplicas": 3}
}"#;

/// Reports a load, and waits until the job has this many verifier pods and its coordinator knows
/// them.
fn wait_for_pods(fixture: &Fixture, needed: u32, expected: usize) {
    let load = json!({"running": 1, "waiting": 2, "neededPods": needed});
    fixture.pods.run.lock().verifier_load = load;
    let names: BTreeSet<String> =
        (0..expected).map(|ordinal| format!("sample-verifier-{ordinal}")).collect();
    let named = || -> BTreeSet<String> {
        let pods = fixture.pods.run.lock().named_verifiers.clone();
        let pods = pods.as_array().cloned().unwrap_or_default();
        pods.iter().filter_map(|pod| pod["name"].as_str().map(str::to_owned)).collect()
    };
    let existing = || -> BTreeSet<String> {
        let pods = fixture.list("api/v1", "pods");
        let all = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
        all.filter(|name| name.starts_with("sample-verifier-")).map(str::to_owned).collect()
    };
    wait_until(&format!("{expected} verifier pods"), LIMIT, || {
        Ok(named() == names && existing() == names)
    })
    .unwrap_or_else(|error| panic!("{error:#}: {:?}\n{}", named(), fixture.output()));
    fixture.wait_for_status(&json!({"verifiers": {"desired": expected, "ready": expected}}));
}

#[test]
fn verifier_pods_follow_the_load_within_bounds_that_may_change_and_end_with_the_run() {
    let spec: Value = serde_json::from_str(SPEC).unwrap();
    let fixture = Fixture::running("verifiers", &json!({ "spec": spec }));
    wait_for_pods(&fixture, 2, 2);
    wait_for_pods(&fixture, 0, 1);
    wait_for_pods(&fixture, 9, 3);
    fixture.wait_for("VerifiersReady");
    fixture.patch(&json!({"verifiers": {"maxReplicas": 2}}));
    wait_for_pods(&fixture, 9, 2);
    fixture.patch(&json!({"suspend": true}));
    fixture.wait_for("Suspended");
    assert_eq!(fixture.job()["status"]["verifiers"], json!({"desired": 0, "ready": 0}));
}

/// Status, reason and message of a condition.
fn condition(fixture: &Fixture, type_: &str) -> [String; 3] {
    let conditions = fixture.job()["status"]["conditions"].take();
    let mut conditions = conditions.as_array().into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == type_).cloned();
    let found = found.unwrap_or_default();
    ["status", "reason", "message"].map(|key| found[key].as_str().unwrap_or_default().to_owned())
}

#[test]
fn verifier_pods_whose_image_cannot_be_pulled_are_reported_with_the_cause_until_it_can() {
    const IMAGE: &str = "registry.invalid/sandbox:1";
    let mut spec: Value = serde_json::from_str(SPEC).unwrap();
    spec["verifiers"]["image"] = json!(IMAGE);
    let mut fixture = Fixture::new("verifier-image", &json!({ "spec": spec }));
    let fails = |detail: &str| json!({"reason": "ImagePullBackOff", "message": detail});
    let wait_for = |fixture: &Fixture, type_: &str, expected: [&str; 3]| {
        let found = || condition(fixture, type_);
        wait_until(&format!("{expected:?}"), LIMIT, || Ok(found() == expected))
            .unwrap_or_else(|error| panic!("{error:#}: {:?}\n{}", found(), fixture.output()));
    };
    let waits = |detail: &str| {
        let container = "container rewards of sample-verifier-0";
        format!("0 of 1 pods are ready; {container}: ImagePullBackOff: {detail}")
    };
    let unreachable = format!("failed to pull {IMAGE}: no such host");
    fixture.pods.run.lock().verifier_waiting = Some(fails(&unreachable));
    fixture.start_operator();
    wait_for(&fixture, "VerifiersReady", ["False", "PodsNotReady", &waits(&unreachable)]);
    assert_eq!(condition(&fixture, "Stalled")[0], "False", "a registry may answer later");

    let missing = format!("failed to pull {IMAGE}: not found");
    fixture.pods.run.lock().verifier_waiting = Some(fails(&missing));
    wait_for(&fixture, "VerifiersReady", ["False", "PodsNotReady", &waits(&missing)]);
    // Training continues until scoring has been impossible for longer than its limit.
    let without =
        waits(&missing).replace("0 of 1 pods are ready", "training without 1 of 1 verifier pods");
    wait_for(&fixture, "Ready", ["True", "Running", &without]);
    assert_eq!(condition(&fixture, "Stalled")[0], "False");

    fixture.pods.run.lock().verifier_waiting = None;
    wait_for(&fixture, "VerifiersReady", ["True", "PodsReady", "1 of 1 pods are ready"]);
    fixture.wait_for("Ready");
}
