//! An operator that was away, and a status that was lost: what is true is found again from what
//! exists, and nothing is started anew.

use serde_json::json;

use super::stage::{Stage, is_true, listed, made_and_removed};

#[test]
fn an_operator_that_was_away_catches_up_and_makes_nothing_anew() {
    let mut stage = Stage::running("away", &json!({}));
    stage.rest();
    stage.kill_operator();
    stage.lose_pod("sample-coordinator-0");
    stage.lose_pod("sample-inference-0");
    let trainer = stage.running_pod("sample-trainer-0");
    stage.play.run.lock().unwrap().attempt = 2;
    let before = stage.writes().len();
    stage.start_operator();
    stage.wait_for_status(&json!({"epoch": 2, "attempt": 2}));
    stage.wait_for("Ready");
    let later = stage.rest().split_off(before);
    assert_eq!(made_and_removed(&later, &stage.uid()), [].into(), "{}", listed(&later));
    assert_eq!(stage.running_pod("sample-trainer-0"), trainer);
}

#[test]
fn another_operator_says_nothing_else_of_a_run_that_makes_steps() {
    let mut stage = Stage::running("restarted", &json!({}));
    let before = stage.rest().len();
    let (version, state) = (stage.version(), stage.end_state());
    stage.start_operator();
    stage.wait_for_question();
    let later = stage.rest().split_off(before);
    assert_eq!((listed(&later), stage.version()), (String::new(), version), "{}", stage.words());
    stage.wait_to_be(&state, "another operator");
}

/// As a restore from a backup leaves it: the CRD's default, and nothing more.
#[test]
fn a_status_that_is_restored_empty_resets_neither_epoch_nor_restarts() {
    let mut stage = Stage::running("restored", &json!({}));
    stage.lose_pod("sample-coordinator-0");
    {
        let mut run = stage.play.run.lock().unwrap();
        (run.attempt, run.restarts, run.step) = (3, 2, 1);
    }
    stage.wait_for_status(&json!({"epoch": 2, "attempt": 3, "restarts": 2}));
    stage.rest();
    let trainer = stage.running_pod("sample-trainer-0");
    stage.kill_operator();
    let empty = json!({"observedGeneration": -1, "attempt": 0, "restarts": 0, "epoch": 0});
    stage
        .api
        .edit(
            &format!("{}/status", stage.job_path()),
            &json!([{"op": "replace", "path": "/status", "value": empty}]),
        )
        .unwrap();
    stage.start_operator();
    stage.wait_for("Ready");
    stage.rest();
    let status = stage.job()["status"].take();
    assert_eq!((&status["attempt"], &status["restarts"]), (&json!(3), &json!(2)), "{status}");
    assert!(status["epoch"].as_u64() >= Some(2), "the epoch went back: {status}");
    assert_eq!(stage.running_pod("sample-trainer-0"), trainer);
    assert!(is_true(&stage.job(), "Ready"));
}
