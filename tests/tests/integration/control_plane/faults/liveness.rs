//! Liveness (Anvil): once faults stop, the job reaches the state it would have reached without
//! them, and writes cease.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rljob_tests::proxy::{Effect, Verb, faults};
use serde_json::{Value, json};

use super::fixture::{Fixture, format_writes, run_parallel, sample};

const SEEDS: [u64; 6] = [1, 2, 3, 4, 5, 6];
/// Share of the requests that fail.
const SHARE: f64 = 0.3;
const EFFECTS: &[Effect] = &[
    Effect::Respond(409),
    Effect::Respond(429),
    Effect::Respond(500),
    Effect::Respond(503),
    Effect::Respond(504),
    Effect::LoseResponse,
    Effect::LoseResponse,
];

/// Random user actions, followed by the final spec.
fn operate(fixture: &mut Fixture, random: &mut ChaCha8Rng) {
    for _ in 0..8 {
        match random.random_range(0..6) {
            0 => fixture.patch(&json!({"suspend": true})),
            1 => fixture.patch(&json!({"suspend": false})),
            2 => fixture.patch(&json!({"inference": {"replicas": random.random_range(1..4)}})),
            3 => fixture.start_operator(),
            4 => fixture.proxy.hold_watches(),
            _ => drop(fixture.api.delete(
                &fixture.path("apis/apps/v1", "statefulsets/sample-inference"),
                &json!({"propagationPolicy": "Background"}),
            )),
        }
        std::thread::sleep(std::time::Duration::from_millis(random.random_range(0..800)));
    }
    fixture.patch(&json!({"suspend": false, "inference": {"replicas": 2}}));
}

/// Removes the epoch: the number of coordinator pods depends on the progress of each suspension.
fn without_epoch(mut state: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    state.get_mut("rljobs/sample").unwrap()["status"].as_object_mut().unwrap().remove("epoch");
    state
}

#[test]
fn after_faults_stop_the_job_converges_and_writes_cease() {
    let undisturbed = Fixture::running(
        "steady",
        &json!({"spec": {"inference": {"replicas": 2}, "drainTimeoutSeconds": 5}}),
    );
    undisturbed.wait_until_idle();
    let expected = without_epoch(undisturbed.end_state());
    run_parallel(sample(SEEDS, 2), |seed| {
        let mut fixture = Fixture::new("unsteady", &json!({"spec": {"drainTimeoutSeconds": 5}}));
        fixture.proxy.inject(faults::at_random(
            seed,
            SHARE,
            |call| call.verb != Verb::Watch,
            EFFECTS,
        ));
        fixture.start_operator();
        operate(&mut fixture, &mut ChaCha8Rng::seed_from_u64(seed));
        fixture.proxy.heal();
        // An operator that exited during the faults is restarted, as its pod would be.
        fixture.start_operator();
        fixture.wait_for("Ready");
        fixture.wait_until_idle();
        assert_eq!(
            super::fixture::differences(&without_epoch(fixture.end_state()), &expected),
            Vec::<String>::new(),
            "seed {seed}\n{}",
            format_writes(&fixture.writes())
        );
    });
}
