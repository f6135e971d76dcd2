//! Changes of engines and of the queue while a job has quota.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::super::operator::{LIMIT, wait_for_pods};
use super::{condition, running, start};

/// Waits until a setting is reported to have no effect.
fn wait_for_ignored(fixture: &super::Fixture, message: &str) {
    let expected = ["False".to_owned(), "WithoutEffect".to_owned(), message.to_owned()];
    wait_until(message, LIMIT, || Ok(condition(fixture, "SettingsEffective") == expected))
        .unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", fixture.job(), fixture.output()));
}

#[test]
fn a_job_runs_with_the_engines_that_were_admitted() {
    let engines = json!({"spec": {"inference": {"replicas": 3, "minReplicas": 1}}});
    let (fixture, kueue) = start("partial", &engines);
    let sets = kueue.workload().unwrap()["spec"]["podSets"].take();
    assert_eq!((&sets[0]["count"], &sets[0]["minCount"]), (&json!(3), &json!(1)), "{sets:#}");
    kueue.admit("spot", Some(2));
    fixture.wait_for("Ready");
    wait_for_pods(&fixture.namespace, 4);
    fixture.wait_for("InferenceReady");
    wait_for_ignored(
        &fixture,
        "spec.inference.replicas is 3, and Kueue granted quota for 2 engines; suspend and resume \
         the job to queue it again",
    );
    kueue.wait_for("PodsReady", ["True", "Started", "all pods are ready"]);
    assert_eq!(kueue.workload().unwrap()["status"].get("reclaimablePods"), None);
}

#[test]
fn quota_of_removed_engines_is_returned_and_added_engines_wait_for_quota() {
    let (fixture, kueue) = running("scaled", &json!({"spec": {"inference": {"replicas": 3}}}));
    fixture.patch(&json!({"inference": {"replicas": 1}}));
    wait_for_pods(&fixture.namespace, 3);
    let reclaimable = || kueue.workload().unwrap()["status"]["reclaimablePods"].take();
    let two = json!([{"name": "inference", "count": 2}]);
    wait_until("the quota to be returned", LIMIT, || Ok(reclaimable() == two))
        .unwrap_or_else(|error| panic!("{error:#}\n{}", fixture.output()));
    fixture.patch(&json!({"inference": {"replicas": 2}}));
    wait_for_ignored(
        &fixture,
        "spec.inference.replicas is 2, and Kueue granted quota for 1 engines; suspend and resume \
         the job to queue it again",
    );
    wait_for_pods(&fixture.namespace, 3);
    assert_eq!(reclaimable(), two);
}

#[test]
fn another_queue_takes_effect_when_the_job_is_queued_again() {
    let (fixture, kueue) = running("moved", &json!({}));
    let label = |queue: Value| {
        let patch = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": queue}}});
        fixture.api.patch(&fixture.job_path(), &patch).unwrap();
    };
    label(json!("other"));
    wait_for_ignored(
        &fixture,
        "the label kueue.x-k8s.io/queue-name is other, and the job keeps its quota of LocalQueue \
         research until it is suspended",
    );
    label(Value::Null);
    wait_for_ignored(
        &fixture,
        "the label kueue.x-k8s.io/queue-name was removed, and the job keeps its quota of \
         LocalQueue research until it is suspended",
    );
    label(json!("other"));
    let first = kueue.uid();
    wait_for_pods(&fixture.namespace, 3);
    fixture.bring_to("suspended");
    fixture.patch(&json!({"suspend": false}));
    kueue.wait_for_another(&first);
    assert_eq!(kueue.workload().unwrap()["spec"]["queueName"], "other");
    // A job in a queue may change it.
    label(json!("third"));
    let queue = || Ok(kueue.workload().unwrap()["spec"]["queueName"] == "third");
    wait_until("the other queue", LIMIT, queue).unwrap();
}
