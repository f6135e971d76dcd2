//! Misoperation: every field of the CRD gets values that nobody should write. The API server
//! refuses them; or the operator acts on them, or says why it cannot; and the good spec brings
//! everything back. The values are made from the schema in crds/rljob.yaml.

use std::fs;

use rljob_tests::files::workspace;
use rljob_tests::process::wait_until;
use serde_json::{Map, Value, json};

use super::super::operator::LIMIT;
use super::stage::{Stage, differences, in_lanes, is_true};

/// Jobs that are misused at once, each by a part of the values.
const JOBS: usize = 4;

/// A job that sets most of what can be set.
fn rich() -> Value {
    json!({"spec": {
        "volumes": [{"name": "data", "mountPath": "/data", "configMap": {"name": "data"}}],
        "dataset": {"evaluation": {"path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer", "everySteps": 2}},
        "inference": {"resources": {"requests": {"cpu": "100m"}}},
        "activeDeadlineSeconds": 86400, "drainTimeoutSeconds": 5,
        "checkpoint": {"exportEverySteps": 3},
    }})
}

/// What is wrong for a value of this schema, or at the edge of what is right.
fn wrong_values(schema: &Value) -> Vec<Value> {
    let mut values = vec![Value::Null];
    match schema["type"].as_str() {
        Some("integer" | "number") => {
            values.extend([
                json!("many"),
                json!(-1),
                json!(0),
                json!(i64::MAX),
                json!(1e300),
                json!(0.5),
            ]);
            values.extend(schema["minimum"].as_f64().map(|minimum| json!(minimum as i64 - 1)));
            values.extend(schema["maximum"].as_f64().map(|maximum| json!(maximum as i64 + 1)));
            values.extend(schema["maximum"].as_f64().map(|maximum| json!(maximum as i64)));
        }
        Some("string") => values.extend([
            json!(7),
            json!(""),
            json!("x".repeat(5000)),
            json!("Nonsense"),
            json!("../{{no}}\n$(no)"),
        ]),
        Some("boolean") => values.extend([json!("yes"), json!(1)]),
        Some("array") => values.extend([json!({}), json!([]), json!([null]), json!("text")]),
        _ => values.extend([json!([]), json!("text"), json!({}), json!({"unheardOf": 1})]),
    }
    values
}

/// Every field with every wrong value, as merge patches of the spec; `live` is what the job has
/// there, for what is in lists.
fn misoperations(
    schema: &Value,
    live: &Value,
    wrap: &dyn Fn(Value) -> Value,
    found: &mut Vec<Value>,
) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let inside = |value: Value| wrap(json!({ name: value }));
        found.extend(wrong_values(schema).into_iter().map(inside));
        misoperations(schema, &live[name], &inside, found);
        if let Some(item) = live[name].get(0) {
            let in_item = |value: Value| {
                let mut item = item.clone();
                super::super::merge(&mut item, &value);
                inside(json!([item]))
            };
            misoperations(&schema["items"], item, &in_item, found);
        }
    }
}

fn all(live: &Value) -> Vec<Value> {
    let text = fs::read_to_string(workspace().join("crds/rljob.yaml")).unwrap();
    let crd: Value = serde_yaml::from_str(&text).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut found = Vec::new();
    misoperations(schema, live, &|value| value, &mut found);
    found
}

/// What of the misoperations the API server accepts and what differs from the good spec; each
/// refusal says which field it is about.
fn accepted(stage: &Stage, good: &Value) -> Vec<Value> {
    let path = format!("{}?dryRun=All&fieldValidation=Strict", stage.job_path());
    let accepts = |patch: &Value| match stage.api.patch(&path, &json!({"spec": patch})) {
        Ok(mut job) => job["spec"].take() != *good,
        Err(error) => {
            let (text, field) = (format!("{error:#}"), outermost(patch));
            assert!(
                text.contains(&field) || text.contains("set spec.suspend to true"),
                "{patch} was refused without a word of {field}: {text}"
            );
            false
        }
    };
    all(good).into_iter().filter(accepts).collect()
}

fn outermost(patch: &Value) -> String {
    patch.as_object().and_then(|fields| fields.keys().next().cloned()).unwrap_or_default()
}

fn restore(stage: &Stage, good: &Value) {
    stage
        .api
        .edit(&stage.job_path(), &json!([{"op": "replace", "path": "/spec", "value": good}]))
        .unwrap();
}

/// Waits until the operator has acted on the newest spec: it is ready, or it says why not.
fn settle(stage: &Stage, what: &Value, holds: impl Fn(&Value) -> bool) {
    let settled = || {
        let job = stage.job();
        Ok(job["status"]["observedGeneration"] == job["metadata"]["generation"] && holds(&job))
    };
    wait_until("the operator to act", LIMIT, settled)
        .unwrap_or_else(|error| panic!("{what}: {error:#}\n{:#}\n{}", stage.job(), stage.words()));
}

/// Gives the job each wrong spec that is accepted, and the good one again.
fn misuse(stage: &Stage, patches: impl Iterator<Item = Value>) {
    let (good, state) = (stage.job()["spec"].take(), stage.end_state());
    for patch in patches {
        if let Err(error) = stage.api.patch(&stage.job_path(), &json!({"spec": patch})) {
            panic!("{patch} was accepted as a dry run, and now {error:#}");
        }
        // A suspended job is not left in between: its spec could not be put right.
        let is_under_way =
            |job: &Value| job["spec"]["suspend"] != true && is_true(job, "Reconciling");
        settle(stage, &patch, |job| {
            is_true(job, "Ready") || is_true(job, "Stalled") || is_under_way(job)
        });
        restore(stage, &good);
        settle(stage, &patch, |job| is_true(job, "Ready") && !is_true(job, "Stalled"));
    }
    stage.wait_to_be(&state, "the good spec was put back");
    assert_eq!(differences(&stage.end_state(), &state), Vec::<String>::new());
    assert!(!stage.words().contains("panicked"), "{}", stage.words());
}

#[test]
fn a_suspended_job_with_any_field_misused_says_so_and_is_as_before_with_the_good_spec() {
    let first = Stage::running("misused", &rich());
    first.patch(&json!({"suspend": true}));
    first.wait_for("Suspended");
    let good = first.job()["spec"].take();
    let patches: Vec<Value> =
        accepted(&first, &good).into_iter().filter(|patch| !resumes(patch)).collect();
    assert!(patches.len() > 50, "{patches:#?}");
    eprintln!("{} misoperations are accepted while the job is suspended", patches.len());
    drop(first);
    in_lanes((0..JOBS).collect(), |job| {
        let stage = Stage::running("misused", &rich());
        stage.patch(&json!({"suspend": true}));
        stage.wait_for("Suspended");
        stage.rest();
        misuse(&stage, patches.iter().skip(job).step_by(JOBS).cloned());
    });
}

#[test]
fn a_running_a_finishing_and_a_deleted_job_refuse_what_would_change_them_and_survive_the_rest() {
    let stage = Stage::running("running-misused", &rich());
    stage.rest();
    let good = stage.job()["spec"].take();
    let trainer = stage.running_pod("sample-trainer-0");
    let patches: Vec<Value> =
        accepted(&stage, &good).into_iter().filter(|patch| !stops(patch)).collect();
    let mutable = [
        "suspend",
        "inference",
        "checkpoint",
        "failurePolicy",
        "drainTimeoutSeconds",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ];
    let frozen: Vec<&Value> =
        patches.iter().filter(|patch| !mutable.contains(&outermost(patch).as_str())).collect();
    assert_eq!(frozen, Vec::<&Value>::new(), "these change what a running job is made of");
    misuse(&stage, patches.iter().cloned());
    assert_eq!(stage.running_pod("sample-trainer-0"), trainer, "a pod was replaced");

    stage.play.run.lock().unwrap().end = Some("Finished");
    for patch in &patches {
        drop(stage.api.patch(&stage.job_path(), &json!({"spec": patch})));
    }
    stage.wait_for("Succeeded");
    stage
        .api
        .edit(
            &stage.job_path(),
            &json!([{"op": "add", "path": "/metadata/finalizers", "value": ["example.com/held"]}]),
        )
        .unwrap();
    stage.api.delete(&stage.job_path(), &Value::Object(Map::new())).unwrap();
    for patch in &patches {
        drop(stage.api.patch(&stage.job_path(), &json!({"spec": patch})));
    }
    stage.rest();
    stage
        .api
        .edit(&stage.job_path(), &json!([{"op": "remove", "path": "/metadata/finalizers"}]))
        .unwrap();
    assert!(!stage.words().contains("panicked"), "{}", stage.words());
}

/// Whether it lets the job run, with pods that then freeze the spec.
fn resumes(patch: &Value) -> bool {
    patch.get("suspend").is_some()
}

/// Whether it ends the run or its pods, as it says: a deadline that is passed, a suspension. Or
/// makes so many pods that nothing else would be tested.
fn stops(patch: &Value) -> bool {
    let engines = patch.pointer("/inference/replicas").and_then(Value::as_i64);
    engines > Some(10)
        || patch.get("suspend").is_some()
        || patch.get("activeDeadlineSeconds").is_some_and(|seconds| seconds.as_i64() < Some(1000))
}
