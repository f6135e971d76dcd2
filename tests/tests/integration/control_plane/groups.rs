//! Groups of the trainer: their pods, the coordinator's list of them, and their status.

use std::collections::BTreeSet;

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::fixture::Fixture;
use super::operator::LIMIT;

/// A group of two pods.
fn spec() -> Value {
    json!({
        "algorithm": {"grpo": {"klCoefficient": 0.1}},
        "trainer": {"groups": [{"name": "frozen", "roles": ["Reference"], "replicas": 2}]},
    })
}

/// Names of the supervisors that the operator named last.
fn named(fixture: &Fixture) -> BTreeSet<String> {
    let named = fixture.pods.run.lock().named_supervisors.clone();
    let named = named.as_array().cloned().unwrap_or_default();
    named.iter().filter_map(|pod| pod["name"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_group_has_separate_pods_that_the_coordinator_knows_and_that_end_with_the_run() {
    let mut fixture = Fixture::new("groups", &json!({ "spec": spec() }));
    let group = json!([{
        "name": "frozen", "attempt": 3, "restarts": 1, "running": true, "supervisors": [],
    }]);
    fixture.pods.run.lock().groups = group;
    fixture.start_operator();
    fixture.wait_for("Ready");
    let names = ["frozen-0", "frozen-1", "0"].map(|name| format!("sample-trainer-{name}"));
    let expected = BTreeSet::from(names);
    wait_until("the supervisors", LIMIT, || Ok(named(&fixture) == expected))
        .unwrap_or_else(|error| panic!("{error:#}: {:?}\n{}", named(&fixture), fixture.output()));
    let status = |pods: u32| {
        let (attempt, restarts) = (3, 1);
        json!([{
            "name": "frozen", "desired": pods, "ready": pods,
            "attempt": attempt, "restarts": restarts,
        }])
    };
    fixture.wait_for_status(&json!({"trainerGroups": status(2)}));
    fixture.wait_for("TrainerReady");

    let pods = fixture.list("api/v1", "pods");
    let of_group = pods.iter().find(|pod| pod["metadata"]["name"] == "sample-trainer-frozen-1");
    let of_group = of_group.expect("a pod of the group");
    assert_eq!(of_group["metadata"]["labels"]["rljob.dev/role"], "trainer-group");
    let command = of_group["spec"]["containers"][0]["command"].to_string();
    assert!(
        command.contains("rljob-supervisor") && command.contains("--group=frozen"),
        "{command}"
    );

    fixture.patch(&json!({"suspend": true}));
    fixture.wait_for("Suspended");
    assert_eq!(fixture.job()["status"]["trainerGroups"], status(0));
}
