//! Unobserved states: what came and went while the operator looked away. It acts on what is, not on
//! what it saw happen.

use serde_json::json;

use super::stage::{Stage, listed};

#[test]
fn what_came_and_went_between_two_looks_has_the_effect_of_its_end() {
    let stage = Stage::running("unobserved", &json!({}));
    stage.rest();
    let (trainer, epoch) =
        (stage.running_pod("sample-trainer-0"), stage.job()["status"]["epoch"].as_u64().unwrap());

    stage.proxy.hold_watches();
    stage.patch(&json!({"suspend": true}));
    stage.lose_pod("sample-coordinator-0");
    stage.patch(&json!({"inference": {"replicas": 3}}));
    stage.lose_pod("sample-coordinator-0");
    stage.patch(&json!({"suspend": false, "inference": {"replicas": 1}}));
    stage.proxy.heal();

    stage.wait_for_status(&json!({"epoch": epoch + 1, "restarts": 0}));
    stage.wait_for("Ready");
    stage.rest();
    assert_eq!(
        stage.running_pod("sample-trainer-0"),
        trainer,
        "a suspension that nobody saw freed a pod\n{}",
        listed(&stage.writes())
    );
    let status = stage.job()["status"].take();
    assert_eq!(
        (&status["epoch"], &status["restarts"]),
        (&json!(epoch + 1), &json!(0)),
        "two lost coordinators that were one for the operator: {status}"
    );
}
