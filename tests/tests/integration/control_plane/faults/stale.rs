//! Stale state: an operator that starts beside an API server that is behind sees a cluster that
//! was. It takes nothing away that is there, and no record back.

use serde_json::json;

use super::stage::{Stage, listed};

#[test]
fn an_operator_that_sees_the_job_suspended_still_takes_no_pods_from_the_resumed_one() {
    let mut stage = Stage::running("stale-suspended", &json!({}));
    stage.patch(&json!({"suspend": true}));
    stage.wait_for("Suspended");
    let suspended = stage.version();
    stage.patch(&json!({"suspend": false}));
    stage.wait_for("Ready");
    stage.rest();
    let (pod, state) = (stage.running_pod("sample-trainer-0"), stage.end_state());

    stage.kill_operator();
    stage.proxy.look_back(&suspended);
    stage.start_operator();
    stage.rest();
    assert_eq!(
        stage.running_pod("sample-trainer-0"),
        pod,
        "{}\n{}",
        listed(&stage.writes()),
        stage.words()
    );
    stage.proxy.heal();
    stage.wait_to_be(&state, "the present is seen again");
    assert_eq!(stage.running_pod("sample-trainer-0"), pod, "{}", listed(&stage.writes()));
}

#[test]
fn an_operator_that_sees_an_earlier_coordinator_takes_neither_epoch_nor_restarts_nor_steps_back() {
    let mut stage = Stage::running("stale-epoch", &json!({}));
    let before = stage.version();
    stage.lose_pod("sample-coordinator-0");
    {
        let mut run = stage.play.run.lock().unwrap();
        (run.attempt, run.restarts, run.step) = (3, 2, 1);
    }
    stage.wait_for_status(&json!({"epoch": 2, "attempt": 3, "restarts": 2}));
    stage.rest();
    let (pod, state) = (stage.running_pod("sample-coordinator-0"), stage.end_state());

    stage.kill_operator();
    stage.proxy.look_back(&before);
    stage.start_operator();
    stage.rest();
    let status = stage.job()["status"].take();
    assert_eq!(
        (&status["epoch"], &status["attempt"], &status["restarts"]),
        (&json!(2), &json!(3), &json!(2)),
        "{status}\n{}",
        stage.words()
    );
    stage.proxy.heal();
    stage.wait_to_be(&state, "the present is seen again");
    assert_eq!(stage.running_pod("sample-coordinator-0"), pod, "{}", listed(&stage.writes()));
    assert_eq!(stage.play.run.lock().unwrap().refused, 0, "no coordinator was told a lower epoch");
}
