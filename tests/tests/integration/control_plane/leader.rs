//! Leader election of two operators.

use std::time::Duration;

use rljob_tests::process::{wait_until, wait_until_still};
use rustix::process::Signal;
use serde_json::json;

use super::operator::{LIMIT, Operator, namespace_with, patch, wait_for_pods};

fn leads(operator: &Operator) -> anyhow::Result<bool> {
    Ok(operator.metric("rljob_leader")? > 0.5)
}

fn wait_to_lead(operator: &Operator, who: &str) {
    wait_until(&format!("the {who} operator to become the leader"), LIMIT, || leads(operator))
        .unwrap();
}

/// The first operator is stopped and resumed after the second has taken over, with a pending change
/// that it must not write.
#[test]
fn a_leader_paused_past_its_lease_writes_nothing_and_can_lead_again() {
    let namespace = namespace_with("leader", &json!({}));
    let start = |image| Operator::start_with(&namespace, image, &["--leader-elect"]);
    let first = start("rljob:first");
    wait_to_lead(&first, "first");
    wait_for_pods(&namespace, 3);
    let second = start("rljob:second");
    wait_until("the standby to be ready", LIMIT, || second.is_ready()).unwrap();
    assert_eq!((leads(&second).unwrap(), second.writes().unwrap()), (false, 0));

    patch(&namespace, &json!({"inference": {"replicas": 2}}));
    wait_for_pods(&namespace, 4);
    let written = settled_writes(&first);
    first.signal(Signal::STOP);
    wait_to_lead(&second, "second");
    patch(&namespace, &json!({"inference": {"replicas": 3}}));
    wait_for_pods(&namespace, 5);
    // A change that the first operator would write if it were still the leader.
    patch(&namespace, &json!({"inference": {"replicas": 1}}));
    first.signal(Signal::CONT);
    first.wait_for_log("lost the lease");
    wait_for_pods(&namespace, 3);
    assert!(!leads(&first).unwrap());
    assert_eq!(
        first.writes().unwrap(),
        written,
        "the first operator wrote after its lease had expired"
    );

    second.signal(Signal::TERM);
    second.wait_for_log("released the lease");
    wait_to_lead(&first, "first");
    patch(&namespace, &json!({"inference": {"replicas": 2}}));
    wait_for_pods(&namespace, 4);
    assert!(
        !first.output().contains("forbidden"),
        "the service account lacks a permission:\n{}",
        first.output()
    );
}

/// Number of writes of an operator once it is idle: the status follows the pods by one
/// reconciliation.
fn settled_writes(operator: &Operator) -> u64 {
    let still = Duration::from_secs(2);
    wait_until_still("the operator to become idle", LIMIT, still, || operator.writes()).unwrap();
    operator.writes().unwrap()
}
