//! Operator downtime and lost status: the operator restores the state from existing objects and
//! coordinators and recreates nothing.

use serde_json::json;

use super::fixture::{Fixture, creates_and_deletes, format_writes, is_true};

#[test]
fn an_operator_catches_up_after_downtime_and_recreates_nothing() {
    let mut fixture = Fixture::running("away", &json!({}));
    fixture.wait_until_idle();
    fixture.kill_operator();
    fixture.lose_pod("sample-coordinator-0");
    fixture.lose_pod("sample-inference-0");
    let trainer = fixture.running_pod("sample-trainer-0");
    fixture.pods.run.lock().attempt = 2;
    let before = fixture.writes().len();
    fixture.start_operator();
    fixture.wait_for_status(&json!({"epoch": 2, "attempt": 2}));
    fixture.wait_for("Ready");
    let later = fixture.wait_until_idle().split_off(before);
    assert_eq!(creates_and_deletes(&later, &fixture.uid()), [].into(), "{}", format_writes(&later));
    assert_eq!(fixture.running_pod("sample-trainer-0"), trainer);
}

#[test]
fn a_new_operator_does_not_change_the_status_of_a_running_job() {
    let mut fixture = Fixture::running("restarted", &json!({}));
    let before = fixture.wait_until_idle().len();
    let (version, state) = (fixture.version(), fixture.end_state());
    fixture.start_operator();
    fixture.wait_for_status_request();
    let later = fixture.wait_until_idle().split_off(before);
    assert_eq!(
        (format_writes(&later), fixture.version()),
        (String::new(), version),
        "{}",
        fixture.output(),
    );
    fixture.wait_for_end_state(&state, "another operator");
}

/// A restore from a backup leaves only the CRD's default status.
#[test]
fn a_status_that_is_restored_empty_resets_neither_epoch_nor_restarts() {
    let mut fixture = Fixture::running("restored", &json!({}));
    fixture.lose_pod("sample-coordinator-0");
    {
        let mut run = fixture.pods.run.lock();
        (run.attempt, run.restarts, run.step) = (3, 2, 1);
    }
    fixture.wait_for_status(&json!({"epoch": 2, "attempt": 3, "restarts": 2}));
    fixture.wait_until_idle();
    let trainer = fixture.running_pod("sample-trainer-0");
    fixture.kill_operator();
    let empty = json!({"observedGeneration": -1, "attempt": 0, "restarts": 0, "epoch": 0});
    fixture
        .api
        .edit(
            &format!("{}/status", fixture.job_path()),
            &json!([{"op": "replace", "path": "/status", "value": empty}]),
        )
        .unwrap();
    fixture.start_operator();
    fixture.wait_for("Ready");
    fixture.wait_until_idle();
    let status = fixture.job()["status"].take();
    assert_eq!((&status["attempt"], &status["restarts"]), (&json!(3), &json!(2)), "{status}");
    assert!(status["epoch"].as_u64() >= Some(2), "the epoch decreased: {status}");
    assert_eq!(fixture.running_pod("sample-trainer-0"), trainer);
    assert!(is_true(&fixture.job(), "Ready"));
}
