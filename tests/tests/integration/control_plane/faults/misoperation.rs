//! Misoperation (Acto): every field of the CRD is set to invalid and extreme values, generated from
//! the schema in crds/rljob.yaml. The API server rejects them, or the operator acts on them or
//! reports why it cannot; restoring the valid spec restores the state.

use std::fs;

use rljob_tests::files::workspace;
use rljob_tests::process::wait_until;
use serde_json::{Map, Value, json};

use super::super::operator::LIMIT;
use super::fixture::{Fixture, differences, is_true, run_parallel, sample};

/// Jobs tested in parallel, each with a share of the values.
const JOBS: usize = 4;
/// Of misoperations, one in this many is tried outside `make thorough`: a prime above the number of
/// values of a field, so that neighboring fields get different ones. `control_plane::fields` tries
/// wrong values of every field.
const SHARE: usize = 11;

/// A job that sets most fields.
fn rich() -> Value {
    json!({"spec": {
        "volumes": [{"name": "data", "mountPath": "/data", "configMap": {"name": "data"}}],
        "dataset": {
            "evaluation": {
                "path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer",
                "everySteps": 2,
            },
        },
        "inference": {"resources": {"requests": {"cpu": "100m"}}},
        "activeDeadlineSeconds": 86400, "drainTimeoutSeconds": 5,
        "checkpoint": {"exportEverySteps": 3},
    }})
}

/// Invalid and boundary values for a schema.
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
        _ => values.extend([json!([]), json!("text"), json!({}), json!({"unknownField": 1})]),
    }
    values
}

/// Merge patches of the spec that set each field to each value; `live` provides the items of lists.
fn misoperations(
    schema: &Value,
    live: &Value,
    wrap: &dyn Fn(Value) -> Value,
    found: &mut Vec<Value>,
) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let inside = |value: Value| wrap(json!({ name: value }));
        found.extend(wrong_values(schema).into_iter().map(inside));
        // Free-form: the API server checks it when the StatefulSet is applied.
        if name == "template" {
            continue;
        }
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

/// Patches of the sample that the API server accepts and that change the valid spec. Asserts that
/// each rejection names the field.
fn accepted(fixture: &Fixture, good: &Value) -> Vec<Value> {
    let path = format!("{}?dryRun=All&fieldValidation=Strict", fixture.job_path());
    let accepts = |patch: &Value| match fixture.api.patch(&path, &json!({"spec": patch})) {
        Ok(mut job) => job["spec"].take() != *good,
        Err(error) => {
            let (text, field) = (format!("{error:#}"), outermost(patch));
            assert!(
                text.contains(&field) || text.contains("set spec.suspend to true"),
                "the rejection of {patch} does not name {field}: {text}"
            );
            false
        }
    };
    sample(all(good), SHARE).into_iter().filter(accepts).collect()
}

fn outermost(patch: &Value) -> String {
    patch.as_object().and_then(|fields| fields.keys().next().cloned()).unwrap_or_default()
}

fn restore(fixture: &Fixture, good: &Value) {
    fixture
        .api
        .edit(&fixture.job_path(), &json!([{"op": "replace", "path": "/spec", "value": good}]))
        .unwrap();
}

/// Waits until the operator has reacted to the newest spec.
fn wait_for_reaction(fixture: &Fixture, what: &Value, holds: impl Fn(&Value) -> bool) {
    let settled = || {
        let job = fixture.job();
        Ok(job["status"]["observedGeneration"] == job["metadata"]["generation"] && holds(&job))
    };
    wait_until("the operator to act", LIMIT, settled).unwrap_or_else(|error| {
        panic!("{what}: {error:#}\n{:#}\n{}", fixture.job(), fixture.output())
    });
}

/// Applies each accepted patch and restores the valid spec after each.
fn misuse(fixture: &Fixture, patches: impl Iterator<Item = Value>) {
    let (good, state) = (fixture.job()["spec"].take(), fixture.end_state());
    for patch in patches {
        if let Err(error) = fixture.api.patch(&fixture.job_path(), &json!({"spec": patch})) {
            panic!("{patch} was accepted as a dry run and then rejected: {error:#}");
        }
        // Restoring a suspended job too early would change a frozen spec.
        let is_under_way =
            |job: &Value| job["spec"]["suspend"] != true && is_true(job, "Reconciling");
        wait_for_reaction(fixture, &patch, |job| {
            is_true(job, "Ready") || is_true(job, "Stalled") || is_under_way(job)
        });
        restore(fixture, &good);
        wait_for_reaction(fixture, &patch, |job| is_true(job, "Ready") && !is_true(job, "Stalled"));
    }
    fixture.wait_for_end_state(&state, "the valid spec was restored");
    assert_eq!(differences(&fixture.end_state(), &state), Vec::<String>::new());
    assert!(!fixture.output().contains("panicked"), "{}", fixture.output());
}

#[test]
fn a_suspended_job_recovers_from_every_misoperation() {
    let first = Fixture::running("misused", &rich());
    first.patch(&json!({"suspend": true}));
    first.wait_for("Suspended");
    let good = first.job()["spec"].take();
    let patches: Vec<Value> =
        accepted(&first, &good).into_iter().filter(|patch| !resumes(patch)).collect();
    assert!(patches.len() > 20, "{patches:#?}");
    eprintln!("{} misoperations are accepted while the job is suspended", patches.len());
    drop(first);
    run_parallel((0..JOBS).collect(), |job| {
        let fixture = Fixture::running("misused", &rich());
        fixture.patch(&json!({"suspend": true}));
        fixture.wait_for("Suspended");
        fixture.wait_until_idle();
        misuse(&fixture, patches.iter().skip(job).step_by(JOBS).cloned());
    });
}

#[test]
fn running_finishing_and_deleted_jobs_survive_every_misoperation() {
    let fixture = Fixture::running("running-misused", &rich());
    fixture.wait_until_idle();
    let good = fixture.job()["spec"].take();
    let trainer = fixture.running_pod("sample-trainer-0");
    let patches: Vec<Value> =
        accepted(&fixture, &good).into_iter().filter(|patch| !stops(patch)).collect();
    let mutable = [
        "suspend",
        "inference",
        "checkpoint",
        "failurePolicy",
        "drainTimeoutSeconds",
        "activeDeadlineSeconds",
        "startupDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ];
    let frozen: Vec<&Value> =
        patches.iter().filter(|patch| !mutable.contains(&outermost(patch).as_str())).collect();
    assert_eq!(frozen, Vec::<&Value>::new(), "frozen fields of a running job were accepted");
    misuse(&fixture, patches.iter().cloned());
    assert_eq!(fixture.running_pod("sample-trainer-0"), trainer, "a pod was replaced");

    fixture.pods.run.lock().end = Some("Finished");
    for patch in &patches {
        drop(fixture.api.patch(&fixture.job_path(), &json!({"spec": patch})));
    }
    fixture.wait_for("Succeeded");
    fixture
        .api
        .edit(
            &fixture.job_path(),
            &json!([{"op": "add", "path": "/metadata/finalizers", "value": ["example.com/held"]}]),
        )
        .unwrap();
    fixture.api.delete(&fixture.job_path(), &Value::Object(Map::new())).unwrap();
    for patch in &patches {
        drop(fixture.api.patch(&fixture.job_path(), &json!({"spec": patch})));
    }
    fixture.wait_until_idle();
    fixture
        .api
        .edit(&fixture.job_path(), &json!([{"op": "remove", "path": "/metadata/finalizers"}]))
        .unwrap();
    assert!(!fixture.output().contains("panicked"), "{}", fixture.output());
}

/// Whether a patch resumes the job, whose pods then freeze the spec.
fn resumes(patch: &Value) -> bool {
    patch.get("suspend").is_some()
}

/// Whether a patch suspends the job, exceeds its deadline, or creates so many pods that the test
/// becomes slow.
fn stops(patch: &Value) -> bool {
    let engines = patch.pointer("/inference/replicas").and_then(Value::as_i64);
    engines > Some(10)
        || patch.get("suspend").is_some()
        || patch.get("activeDeadlineSeconds").is_some_and(|seconds| seconds.as_i64() < Some(1000))
}
