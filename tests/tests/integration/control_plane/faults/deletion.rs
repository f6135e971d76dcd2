//! Deletion, in every state and in every way: what is the job's goes, or stays as it is where that
//! was asked for; nothing comes back.

use rljob_tests::process::wait_until;
use serde_json::json;

use super::super::operator::LIMIT;
use super::stage::{Stage, in_lanes};

const STATES: [&str; 6] = ["starting", "running", "draining", "suspended", "finished", "stalled"];

fn in_state(state: &str) -> Stage {
    let patch = if state == "stalled" {
        json!({"spec": {"training": {"minibatches": 5}}})
    } else {
        json!({})
    };
    let mut stage = Stage::set(state, &patch);
    stage.start_operator();
    match state {
        "stalled" => stage.wait_for("Stalled"),
        "starting" => stage.wait_for("Reconciling"),
        _ => stage.wait_for("Ready"),
    }
    stage.bring_to(state);
    stage
}

#[test]
fn a_job_can_be_deleted_in_every_state_and_in_every_way() {
    let cases = STATES
        .iter()
        .flat_map(|state| ["Background", "Foreground", "Orphan"].map(|policy| (*state, policy)))
        .collect();
    in_lanes(cases, |(state, policy)| {
        let stage = in_state(state);
        stage.api.delete(&stage.job_path(), &json!({"propagationPolicy": policy})).unwrap();
        let gone = || {
            Ok(stage
                .api
                .get(&stage.job_path())
                .is_err_and(|error| format!("{error:#}").contains("404")))
        };
        wait_until("the job to go", LIMIT, gone)
            .unwrap_or_else(|error| panic!("{state}, {policy}: {error:#}"));
        if policy != "Orphan" {
            wait_until("the children to go", LIMIT, || Ok(stage.children().is_empty()))
                .unwrap_or_else(|error| {
                    panic!("{state}, {policy}: {error:#}\n{:?}", stage.children())
                });
        }
        // A pass that was under way may still end: what it made has an owner that is gone, and goes
        // too. Then nothing is written any more.
        let owned = || {
            stage
                .children()
                .into_iter()
                .filter(|child| child["metadata"]["ownerReferences"][0]["kind"] == "RLJob")
                .collect::<Vec<_>>()
        };
        wait_until("what was made late to go", LIMIT, || Ok(owned().is_empty()))
            .unwrap_or_else(|error| panic!("{state}, {policy}: {error:#}\n{:?}", owned()));
        stage.rest();
    });
}
