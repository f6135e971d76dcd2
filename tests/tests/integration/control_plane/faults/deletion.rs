//! Deletion in every state and with every propagation policy: children are deleted or orphaned as
//! requested, and none is recreated.

use rljob_tests::process::wait_until;
use serde_json::json;

use super::super::operator::LIMIT;
use super::fixture::{Fixture, run_parallel};

const STATES: [&str; 6] = ["starting", "running", "draining", "suspended", "finished", "stalled"];

fn in_state(state: &str) -> Fixture {
    let patch = if state == "stalled" {
        json!({"spec": {"training": {"minibatches": 5}}})
    } else {
        json!({})
    };
    let mut fixture = Fixture::new(state, &patch);
    fixture.start_operator();
    match state {
        "stalled" => fixture.wait_for("Stalled"),
        "starting" => fixture.wait_for("Reconciling"),
        _ => fixture.wait_for("Ready"),
    }
    fixture.bring_to(state);
    fixture
}

#[test]
fn a_job_can_be_deleted_in_every_state_with_every_policy() {
    let cases = STATES
        .iter()
        .flat_map(|state| ["Background", "Foreground", "Orphan"].map(|policy| (*state, policy)))
        .collect();
    run_parallel(cases, |(state, policy)| {
        let fixture = in_state(state);
        fixture.api.delete(&fixture.job_path(), &json!({"propagationPolicy": policy})).unwrap();
        let deleted = || {
            Ok(fixture
                .api
                .get(&fixture.job_path())
                .is_err_and(|error| format!("{error:#}").contains("404")))
        };
        wait_until("the job to be deleted", LIMIT, deleted)
            .unwrap_or_else(|error| panic!("{state}, {policy}: {error:#}"));
        if policy != "Orphan" {
            wait_until("the children to be deleted", LIMIT, || Ok(fixture.children().is_empty()))
                .unwrap_or_else(|error| {
                    panic!("{state}, {policy}: {error:#}\n{:?}", fixture.children())
                });
        }
        // A reconciliation in progress may still create children, which garbage collection deletes
        // because their owner is gone. No writes follow.
        let owned = || {
            fixture
                .children()
                .into_iter()
                .filter(|child| child["metadata"]["ownerReferences"][0]["kind"] == "RLJob")
                .collect::<Vec<_>>()
        };
        wait_until("children created late to be deleted", LIMIT, || Ok(owned().is_empty()))
            .unwrap_or_else(|error| panic!("{state}, {policy}: {error:#}\n{:?}", owned()));
        fixture.wait_until_idle();
    });
}
