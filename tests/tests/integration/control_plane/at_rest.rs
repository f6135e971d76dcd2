//! What happens when nothing is to be done, and what puts it right when somebody else does
//! something.

use std::time::Duration;

use rljob_tests::Namespace;
use rljob_tests::process::{wait_until, wait_until_still};
use serde_json::{Value, json};

use super::operator::{LIMIT, OWN, Operator, field, namespace_with, wait_for_pods};
use super::stage::{Stage, in_lanes, listed};

/// Longer than what only counts waits to be written.
const HELD_BACK: Duration = Duration::from_millis(1500);
/// The children that are never altered by anybody but the operator: their versions grow with its
/// writes alone.
const QUIET: &str = "services,configmaps,secrets,networkpolicies";

/// UID and what the operator wrote and when, of the job and everything it is made of.
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

/// A job whose pods cannot be scheduled, when the cluster has no more to say of it.
fn at_rest(prefix: &str) -> (Namespace, Operator) {
    let namespace = namespace_with(prefix, &json!({}));
    let operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let message =
        || field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Succeeded')].message");
    wait_until("the scheduler's words", LIMIT, || Ok(message().contains("cannot be scheduled")))
        .unwrap();
    wait_until_still("the operator to rest", LIMIT, HELD_BACK, || Ok(writes(&namespace))).unwrap();
    (namespace, operator)
}

#[test]
fn a_new_operator_over_a_job_at_rest_writes_nothing() {
    let (namespace, first) = at_rest("rest");
    drop(first);
    let before = writes(&namespace);
    let second = Operator::start(&namespace, "rljob:a");
    second.wait_to_say("\"reconciled\"");
    // A pass later than the first.
    namespace.kubectl.run(&["label", "pods", OWN, "example.com/touched=true"]).unwrap();
    wait_until("a second pass", LIMIT, || {
        Ok(second.metric("rljob_reconcile_duration_seconds_count")? >= 2.0)
    })
    .unwrap();
    assert_eq!(writes(&namespace), before);
}

/// How a job comes to a state in which nothing is to be done.
fn comes_to_rest(state: &str) -> Stage {
    let patch = if state == "stalled" {
        json!({"spec": {"training": {"minibatches": 5}}})
    } else {
        json!({})
    };
    let mut stage = Stage::set(state, &patch);
    stage.start_operator();
    if state == "stalled" {
        stage.wait_for("Stalled");
        return stage;
    }
    stage.wait_for("Ready");
    stage.bring_to(state);
    if state == "removed" {
        stage.patch(&json!({"ttlSecondsAfterFinished": 0}));
        let configs = || Ok(stage.list("api/v1", "configmaps").is_empty());
        wait_until("the children to go", LIMIT, configs).unwrap();
    }
    stage
}

/// Requests to the API server in five passes.
fn requests_of_passes(stage: &Stage) -> f64 {
    stage.rest();
    let (passes, requests) = stage.passes_and_requests().unwrap();
    for number in 1..=5 {
        // Any change of the object causes a pass; those that come together, one.
        let touched = json!({"metadata": {"annotations": {"example.com/touched": format!("{passes} {number}")}}});
        stage.api.patch(&stage.job_path(), &touched).unwrap();
        let seen = || Ok(stage.passes_and_requests()?.0 >= passes + f64::from(number));
        wait_until("a pass", LIMIT, seen)
            .unwrap_or_else(|error| panic!("{error:#}\n{}", stage.words()));
    }
    stage.passes_and_requests().unwrap().1 - requests
}

#[test]
fn a_pass_with_nothing_to_do_asks_the_api_server_nothing() {
    in_lanes(vec!["running", "suspended", "finished", "removed", "failed", "stalled"], |state| {
        let stage = comes_to_rest(state);
        // What is told late, such as the engines' states within a minute, is told once; a pass that
        // always asks is found each time.
        let seen: Vec<f64> = (0..3).map(|_| requests_of_passes(&stage)).collect();
        assert!(
            seen.contains(&0.0),
            "{state}: requests in five passes, three times: {seen:?}\n{}",
            listed(&stage.writes())
        );
    });
}

#[test]
fn what_others_alter_is_put_right_and_what_they_delete_comes_back() {
    let (namespace, operator) = at_rest("drift");
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
        wait_until(&format!("{object} to come back"), LIMIT, back).unwrap();
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
    kubectl(&["set", "image", "statefulset/sample-inference", "inference=example.com/other:1"]);
    is(
        "statefulset/sample-inference",
        ".spec.template.spec.containers[0].image",
        "rljob:a".to_owned(),
    );
    kubectl(&["label", "service/sample-coordinator", "rljob.dev/job-"]);
    is("service/sample-coordinator", ".metadata.labels['rljob\\.dev/job']", "sample".to_owned());
    wait_for_pods(&namespace, 3);
    assert!(
        !operator.words().contains("forbidden"),
        "the service account lacks a right:\n{}",
        operator.words()
    );
}
