//! Writes that fail, or take effect and are not answered: each is made good, and nothing is made
//! twice.

use rljob_tests::proxy::{Effect, faults};
use serde_json::json;

use super::stage::{Stage, in_lanes, listed, made_and_removed};

/// What is answered, and to writes of which resource.
const CASES: [(Effect, &str); 10] = [
    (Effect::Answer(409), "rljobs"),
    (Effect::Answer(409), "statefulsets"),
    (Effect::Answer(422), "statefulsets"),
    (Effect::Answer(429), "services"),
    (Effect::Answer(500), "rljobs"),
    (Effect::Answer(503), "statefulsets"),
    (Effect::Answer(503), "rljobs"),
    (Effect::LoseAnswer, "rljobs"),
    (Effect::LoseAnswer, "configmaps"),
    (Effect::LoseAnswer, "statefulsets"),
];

#[test]
fn a_write_that_is_refused_or_not_answered_changes_neither_the_end_nor_what_is_made() {
    let undisturbed = Stage::running("unrefused", &json!({}));
    let (writes, state) = (undisturbed.rest(), undisturbed.end_state());
    let made = made_and_removed(&writes, &undisturbed.uid());
    in_lanes(CASES.to_vec(), |(effect, resource)| {
        let mut stage = Stage::set("refused", &json!({}));
        stage.proxy.inject(faults::first(2, move |call| call.writes(resource), effect));
        stage.start_operator();
        let context = format!("{effect:?} to two writes of {resource}");
        stage.wait_to_be(&state, &context);
        let writes = stage.rest();
        let mut seen = made_and_removed(&writes, &stage.uid());
        // One whose answer was lost is made, whatever the operator learned of it.
        seen.retain(|_, count| *count > 0);
        assert_eq!(seen, made, "{context}\n{}", listed(&writes));
    });
}
