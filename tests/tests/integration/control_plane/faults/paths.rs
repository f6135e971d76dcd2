//! Paths: what a job is in the end depends on what its spec says last, not on what it said before.

use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::stage::{Stage, differences, in_lanes};

const SEEDS: [u64; 3] = [1, 2, 3];

/// Edits of a suspended job.
fn edits() -> Vec<Value> {
    let volume =
        |name: &str| json!([{"name": name, "mountPath": "/data", "configMap": {"name": name}}]);
    vec![
        json!({"rollout": {"batchSize": 8, "temperature": 0.5}}),
        json!({"inference": {"replicas": 3, "resources": {"limits": {"memory": "2Gi"}}}}),
        json!({"inference": {"engine": "SGLang", "extraArgs": ["--context-length=4096"]}}),
        json!({"trainer": {"processesPerReplica": 2, "image": "rljob:other"}}),
        json!({"volumes": volume("data")}),
        json!({"volumes": volume("more"), "weightSync": {"method": "Distributed"}}),
        json!({"checkpoint": {"everySteps": 5}, "drainTimeoutSeconds": 7, "activeDeadlineSeconds": 3600}),
        json!({"dataset": {"evaluation": {"path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer"}}}),
    ]
}

/// Suspends a running job, gives it these specs one after another, and resumes it.
fn through(specs: &[&Value]) -> Stage {
    let stage = Stage::running("path", &json!({}));
    let first = stage.job()["spec"].take();
    stage.patch(&json!({"suspend": true}));
    stage.wait_for("Suspended");
    for spec in specs {
        // Each from the first, so that the last one alone says what is to be.
        stage
            .api
            .edit(&stage.job_path(), &json!([{"op": "replace", "path": "/spec", "value": first}, {"op": "replace", "path": "/spec/suspend", "value": true}]))
            .unwrap();
        stage.patch(spec);
        stage.wait_for("Suspended");
    }
    stage.patch(&json!({"suspend": false}));
    stage.wait_for("Ready");
    stage.rest();
    stage
}

#[test]
fn a_job_is_the_same_whatever_its_spec_said_on_the_way() {
    in_lanes(SEEDS.to_vec(), |seed| {
        let edits = edits();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let [b, c] = edits.choose_multiple(&mut random, 2).collect::<Vec<_>>()[..] else {
            panic!("there are edits")
        };
        let (direct, around) = (through(&[c]), through(&[b, c]));
        assert_eq!(
            differences(&around.end_state(), &direct.end_state()),
            Vec::<String>::new(),
            "by way of {b} to {c}"
        );
    });
}
