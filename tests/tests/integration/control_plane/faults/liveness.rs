//! Liveness: whatever went wrong, once it stops the job gets to where it would have got, and then
//! nothing is written.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rljob_tests::proxy::{Effect, Verb, faults};
use serde_json::{Value, json};

use super::stage::{Stage, in_lanes, listed};

const SEEDS: [u64; 6] = [1, 2, 3, 4, 5, 6];
/// Share of the requests that go wrong.
const SHARE: f64 = 0.3;
const EFFECTS: &[Effect] = &[
    Effect::Answer(409),
    Effect::Answer(429),
    Effect::Answer(500),
    Effect::Answer(503),
    Effect::Answer(504),
    Effect::LoseAnswer,
    Effect::LoseAnswer,
];

/// What people do to a job, in any order; then what it is to be in the end.
fn operate(stage: &mut Stage, random: &mut ChaCha8Rng) {
    for _ in 0..8 {
        match random.random_range(0..6) {
            0 => stage.patch(&json!({"suspend": true})),
            1 => stage.patch(&json!({"suspend": false})),
            2 => stage.patch(&json!({"inference": {"replicas": random.random_range(1..4)}})),
            3 => stage.start_operator(),
            4 => stage.proxy.hold_watches(),
            _ => drop(stage.api.delete(
                &stage.path("apis/apps/v1", "statefulsets/sample-inference"),
                &json!({"propagationPolicy": "Background"}),
            )),
        }
        std::thread::sleep(std::time::Duration::from_millis(random.random_range(0..800)));
    }
    stage.patch(&json!({"suspend": false, "inference": {"replicas": 2}}));
}

/// How often the coordinator was replaced depends on how far each suspension came.
fn without_epoch(mut state: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    state.get_mut("rljobs/sample").unwrap()["status"].as_object_mut().unwrap().remove("epoch");
    state
}

#[test]
fn when_faults_stop_the_job_gets_where_it_would_have_got_and_nothing_more_is_written() {
    let undisturbed = Stage::running(
        "steady",
        &json!({"spec": {"inference": {"replicas": 2}, "drainTimeoutSeconds": 5}}),
    );
    undisturbed.rest();
    let expected = without_epoch(undisturbed.end_state());
    in_lanes(SEEDS.to_vec(), |seed| {
        let mut stage = Stage::set("unsteady", &json!({"spec": {"drainTimeoutSeconds": 5}}));
        stage.proxy.inject(faults::at_random(
            seed,
            SHARE,
            |call| call.verb != Verb::Watch,
            EFFECTS,
        ));
        stage.start_operator();
        operate(&mut stage, &mut ChaCha8Rng::seed_from_u64(seed));
        stage.proxy.heal();
        // A start under faults may have failed for good; its pod would be restarted.
        stage.start_operator();
        stage.wait_for("Ready");
        stage.rest();
        assert_eq!(
            super::stage::differences(&without_epoch(stage.end_state()), &expected),
            Vec::<String>::new(),
            "seed {seed}\n{}",
            listed(&stage.writes())
        );
    });
}
