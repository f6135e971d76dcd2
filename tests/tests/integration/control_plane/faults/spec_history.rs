//! Spec history: the end state depends on the last spec only.

use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::fixture::{Fixture, differences, run_parallel};

const SEEDS: [u64; 3] = [1, 2, 3];

/// Edits of a suspended job.
fn edits() -> Vec<Value> {
    let volume =
        |name: &str| json!([{"name": name, "mountPath": "/data", "configMap": {"name": name}}]);
    vec![
        json!({"rollout": {"batchSize": 8, "temperature": 0.5}}),
        json!({"inference": {"replicas": 3, "resources": {"limits": {"memory": "2Gi"}}}}),
        json!({"inference": {"sglang": {"extraArgs": ["--context-length=4096"]}}}),
        json!({"trainer": {"processesPerReplica": 2, "image": "rljob:other"}}),
        json!({"volumes": volume("data")}),
        json!({"volumes": volume("more"), "weightSync": {"method": "Distributed"}}),
        json!({
            "checkpoint": {"everySteps": 5}, "drainTimeoutSeconds": 7,
            "activeDeadlineSeconds": 3600,
        }),
        json!({
            "dataset": {
                "evaluation": {
                    "path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer",
                },
            },
        }),
    ]
}

/// Suspends a running job, applies these specs one after another, and resumes it.
fn through(specs: &[&Value]) -> Fixture {
    let fixture = Fixture::running("path", &json!({}));
    let first = fixture.job()["spec"].take();
    fixture.patch(&json!({"suspend": true}));
    fixture.wait_for("Suspended");
    for spec in specs {
        // Each edit starts from the first spec, so that the last one determines the result.
        fixture
            .api
            .edit(
                &fixture.job_path(),
                &json!([
                    {"op": "replace", "path": "/spec", "value": first},
                    {"op": "replace", "path": "/spec/suspend", "value": true},
                ]),
            )
            .unwrap();
        fixture.patch(spec);
        fixture.wait_for("Suspended");
    }
    fixture.patch(&json!({"suspend": false}));
    fixture.wait_for("Ready");
    fixture.wait_until_idle();
    fixture
}

#[test]
fn the_end_state_does_not_depend_on_earlier_specs() {
    run_parallel(SEEDS.to_vec(), |seed| {
        let edits = edits();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let [b, c] = edits.choose_multiple(&mut random, 2).collect::<Vec<_>>()[..] else {
            panic!("there are edits")
        };
        let (direct, around) = (through(&[c]), through(&[b, c]));
        assert_eq!(
            differences(&around.end_state(), &direct.end_state()),
            Vec::<String>::new(),
            "{c} after {b}"
        );
    });
}
