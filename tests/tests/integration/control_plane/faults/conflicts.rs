//! Failed writes and lost responses: the operator retries, and no object is created twice.

use rljob_tests::proxy::{Effect, faults};
use serde_json::json;

use super::fixture::{Fixture, creates_and_deletes, format_writes, run_parallel};

/// Effect, and the resource whose writes it applies to.
const CASES: [(Effect, &str); 10] = [
    (Effect::Respond(409), "rljobs"),
    (Effect::Respond(409), "statefulsets"),
    (Effect::Respond(422), "statefulsets"),
    (Effect::Respond(429), "services"),
    (Effect::Respond(500), "rljobs"),
    (Effect::Respond(503), "statefulsets"),
    (Effect::Respond(503), "rljobs"),
    (Effect::LoseResponse, "rljobs"),
    (Effect::LoseResponse, "configmaps"),
    (Effect::LoseResponse, "statefulsets"),
];

#[test]
fn failed_writes_and_lost_responses_change_neither_end_state_nor_creations() {
    let undisturbed = Fixture::running("undisturbed", &json!({}));
    let (writes, state) = (undisturbed.wait_until_idle(), undisturbed.end_state());
    let expected = creates_and_deletes(&writes, &undisturbed.uid());
    run_parallel(CASES.to_vec(), |(effect, resource)| {
        let mut fixture = Fixture::new("failing", &json!({}));
        fixture.proxy.inject(faults::first(2, move |call| call.writes(resource), effect));
        fixture.start_operator();
        let context = format!("{effect:?} to two writes of {resource}");
        fixture.wait_for_end_state(&state, &context);
        let writes = fixture.wait_until_idle();
        let seen = creates_and_deletes(&writes, &fixture.uid());
        assert_eq!(seen, expected, "{context}\n{}", format_writes(&writes));
    });
}
