//! Idle jobs: no writes and no requests without a change, and correction of drift.

use std::time::Duration;

use rljob_tests::Namespace;
use rljob_tests::process::{wait_until, wait_until_still};
use serde_json::{Value, json};

use super::fixture::{Fixture, format_writes, run_parallel};
use super::operator::{LIMIT, OWN, Operator, field, namespace_with, wait_for_pods};

/// Longer than the throttling of status writes.
const THROTTLE_TIME: Duration = Duration::from_millis(1500);
/// Kinds of children that only the operator writes.
const QUIET: &str = "services,configmaps,secrets,networkpolicies";

/// UID and the operator's managed fields with their times, of the job and its children.
fn writes(namespace: &Namespace) -> Vec<Value> {
    let kinds = format!("rljobs,statefulsets,poddisruptionbudgets,{QUIET}");
    let objects = namespace.kubectl.get(&[&kinds, "--show-managed-fields"]).unwrap();
    let own = |object: &&Value| {
        object["kind"] == "RLJob" || object["metadata"]["labels"]["rljob.dev/job"] == "sample"
    };
    let written = |object: &Value| {
        let entries = object["metadata"]["managedFields"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["manager"] == "rljob.dev/operator");
        json!([
            object["kind"],
            object["metadata"]["name"],
            object["metadata"]["uid"],
            entries.collect::<Vec<_>>()
        ])
    };
    objects["items"].as_array().unwrap().iter().filter(own).map(written).collect()
}

/// A job with unschedulable pods, once its status no longer changes.
fn idle_job(prefix: &str) -> (Namespace, Operator) {
    let namespace = namespace_with(prefix, &json!({}));
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let message =
        || field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Succeeded')].message");
    wait_until("the scheduler's message", LIMIT, || Ok(message().contains("cannot be scheduled")))
        .unwrap();
    wait_until_still("the operator to become idle", LIMIT, THROTTLE_TIME, || {
        Ok(writes(&namespace))
    })
    .unwrap();
    (namespace, operator)
}

#[test]
fn a_new_operator_writes_nothing_for_an_idle_job() {
    let (namespace, first) = idle_job("rest");
    drop(first);
    let before = writes(&namespace);
    let second = Operator::start(&namespace, "rljob:a");
    second.wait_for_log("\"reconciled\"");
    // A second reconciliation.
    namespace.kubectl.run(&["label", "pods", OWN, "example.com/touched=true"]).unwrap();
    wait_until("a second reconciliation", LIMIT, || {
        Ok(second.metric("rljob_reconcile_duration_seconds_count")? >= 2.0)
    })
    .unwrap();
    assert_eq!(writes(&namespace), before);
}

/// A job in a state without pending work.
fn job_in_state(state: &str) -> Fixture {
    let patch = if state == "stalled" {
        json!({"spec": {"training": {"minibatches": 5}}})
    } else {
        json!({})
    };
    let mut fixture = Fixture::new(state, &patch);
    fixture.start_operator();
    if state == "stalled" {
        fixture.wait_for("Stalled");
        return fixture;
    }
    fixture.wait_for("Ready");
    fixture.bring_to(state);
    if state == "removed" {
        fixture.patch(&json!({"ttlSecondsAfterFinished": 0}));
        let configs = || Ok(fixture.list("api/v1", "configmaps").is_empty());
        wait_until("the children to be deleted", LIMIT, configs).unwrap();
    }
    fixture
}

/// Number of API requests in five reconciliations.
fn requests_of_passes(fixture: &Fixture) -> f64 {
    fixture.wait_until_idle();
    let (passes, requests) = fixture.passes_and_requests().unwrap();
    for number in 1..=5 {
        // Any change of the object triggers a reconciliation; concurrent ones are merged.
        let touched = json!({
            "metadata": {"annotations": {"example.com/touched": format!("{passes} {number}")}},
        });
        fixture.api.patch(&fixture.job_path(), &touched).unwrap();
        let seen = || Ok(fixture.passes_and_requests()?.0 >= passes + f64::from(number));
        wait_until("a reconciliation", LIMIT, seen)
            .unwrap_or_else(|error| panic!("{error:#}\n{}", fixture.output()));
    }
    fixture.passes_and_requests().unwrap().1 - requests
}

#[test]
fn a_reconciliation_without_changes_sends_no_requests() {
    run_parallel(
        vec!["running", "suspended", "finished", "removed", "failed", "stalled"],
        |state| {
            let fixture = job_in_state(state);
            // A throttled status may be written once later; a reconciliation that always sends a
            // request is detected in each of the three rounds.
            let seen: Vec<f64> = (0..3).map(|_| requests_of_passes(&fixture)).collect();
            assert!(
                seen.contains(&0.0),
                "{state}: requests in three rounds of five reconciliations: {seen:?}\n{}",
                format_writes(&fixture.writes())
            );
        },
    );
}

#[test]
fn modified_children_are_corrected_and_deleted_ones_recreated() {
    let (namespace, operator) = idle_job("drift");
    let kubectl = |arguments: &[&str]| namespace.kubectl.run(arguments).unwrap();
    let is = |object: &'static str, path: &'static str, value: String| {
        let seen = || field(&namespace, object, path);
        wait_until(&format!("{path} of {object} to be {value}"), LIMIT, || Ok(seen() == value))
            .unwrap();
    };
    let deleted = [
        "configmap/sample-run",
        "networkpolicy/sample",
        "poddisruptionbudget/sample-inference",
        "service/sample-trainer",
        "statefulset/sample-trainer",
    ];
    for object in deleted {
        let uid = field(&namespace, object, ".metadata.uid");
        kubectl(&["delete", object, "--wait=false"]);
        let back = || {
            Ok(namespace.kubectl.get(&[object]).is_ok_and(|seen| seen["metadata"]["uid"] != uid))
        };
        wait_until(&format!("{object} to be recreated"), LIMIT, back).unwrap();
    }
    let text = field(&namespace, "configmap/sample-run", ".data['run\\.json']");
    kubectl(&[
        "patch",
        "configmap/sample-run",
        "--type=merge",
        "--patch",
        r#"{"data": {"run.json": "{}"}}"#,
    ]);
    is("configmap/sample-run", ".data['run\\.json']", text);
    kubectl(&["scale", "statefulset/sample-inference", "--replicas=3"]);
    is("statefulset/sample-inference", ".spec.replicas", "1".to_owned());
    kubectl(&["set", "image", "statefulset/sample-inference", "engine=example.com/other:1"]);
    is(
        "statefulset/sample-inference",
        ".spec.template.spec.containers[0].image",
        "rljob:a".to_owned(),
    );
    kubectl(&["label", "service/sample-coordinator", "rljob.dev/job-"]);
    is("service/sample-coordinator", ".metadata.labels['rljob\\.dev/job']", "sample".to_owned());
    wait_for_pods(&namespace, 3);
    assert!(
        !operator.output().contains("forbidden"),
        "the service account lacks a permission:\n{}",
        operator.output()
    );
}
