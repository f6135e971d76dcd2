//! Stale state (Sieve): an operator that reads from a stale API server deletes no existing object
//! and reverts no status.

use serde_json::json;

use super::fixture::{Fixture, format_writes};

#[test]
fn a_stale_suspension_deletes_no_pods_of_the_resumed_job() {
    let mut fixture = Fixture::running("stale-suspended", &json!({}));
    fixture.patch(&json!({"suspend": true}));
    fixture.wait_for("Suspended");
    let suspended = fixture.version();
    fixture.patch(&json!({"suspend": false}));
    fixture.wait_for("Ready");
    fixture.wait_until_idle();
    let (pod, state) = (fixture.running_pod("sample-trainer-0"), fixture.end_state());

    fixture.kill_operator();
    fixture.proxy.serve_stale_reads(&suspended);
    fixture.start_operator();
    fixture.wait_until_idle();
    assert_eq!(
        fixture.running_pod("sample-trainer-0"),
        pod,
        "{}\n{}",
        format_writes(&fixture.writes()),
        fixture.output()
    );
    fixture.proxy.heal();
    fixture.wait_for_end_state(&state, "after reads are current again");
    assert_eq!(
        fixture.running_pod("sample-trainer-0"),
        pod,
        "{}",
        format_writes(&fixture.writes()),
    );
}

#[test]
fn a_stale_coordinator_pod_reverts_neither_epoch_nor_restarts_nor_steps() {
    let mut fixture = Fixture::running("stale-epoch", &json!({}));
    let before = fixture.version();
    fixture.lose_pod("sample-coordinator-0");
    {
        let mut run = fixture.pods.run.lock();
        (run.attempt, run.restarts, run.step) = (3, 2, 1);
    }
    fixture.wait_for_status(&json!({"epoch": 2, "attempt": 3, "restarts": 2}));
    fixture.wait_until_idle();
    let (pod, state) = (fixture.running_pod("sample-coordinator-0"), fixture.end_state());

    fixture.kill_operator();
    fixture.proxy.serve_stale_reads(&before);
    fixture.start_operator();
    fixture.wait_until_idle();
    let status = fixture.job()["status"].take();
    assert_eq!(
        (&status["epoch"], &status["attempt"], &status["restarts"]),
        (&json!(2), &json!(3), &json!(2)),
        "{status}\n{}",
        fixture.output()
    );
    fixture.proxy.heal();
    fixture.wait_for_end_state(&state, "after reads are current again");
    assert_eq!(
        fixture.running_pod("sample-coordinator-0"),
        pod,
        "{}",
        format_writes(&fixture.writes()),
    );
    assert_eq!(fixture.pods.run.lock().rejected, 0, "a coordinator received a lower epoch");
}
