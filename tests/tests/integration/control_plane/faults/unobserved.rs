//! Unobserved states (Sieve): changes that the operator did not observe because later ones
//! superseded them. The operator acts on the current state only.

use serde_json::json;

use super::fixture::{Fixture, format_writes};

#[test]
fn superseded_changes_have_no_effect() {
    let fixture = Fixture::running("unobserved", &json!({}));
    fixture.wait_until_idle();
    let (trainer, epoch) = (
        fixture.running_pod("sample-trainer-0"),
        fixture.job()["status"]["epoch"].as_u64().unwrap(),
    );

    fixture.proxy.hold_watches();
    fixture.patch(&json!({"suspend": true}));
    fixture.lose_pod("sample-coordinator-0");
    fixture.patch(&json!({"inference": {"replicas": 3}}));
    fixture.lose_pod("sample-coordinator-0");
    fixture.patch(&json!({"suspend": false, "inference": {"replicas": 1}}));
    fixture.proxy.heal();

    fixture.wait_for_status(&json!({"epoch": epoch + 1, "restarts": 0}));
    fixture.wait_for("Ready");
    fixture.wait_until_idle();
    assert_eq!(
        fixture.running_pod("sample-trainer-0"),
        trainer,
        "an unobserved suspension deleted a pod\n{}",
        format_writes(&fixture.writes())
    );
    let status = fixture.job()["status"].take();
    assert_eq!(
        (&status["epoch"], &status["restarts"]),
        (&json!(epoch + 1), &json!(0)),
        "the operator observed one of two coordinator losses: {status}"
    );
}
