//! Evictions: the job drains, returns its quota when no pod is left, and resumes.

use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::super::operator::{LIMIT, field, wait_for_pods};
use super::{condition, running, wait_for_condition};

#[test]
fn an_evicted_job_drains_returns_its_quota_and_resumes_on_other_nodes() {
    let (fixture, kueue) = running("evicted", &json!({}));
    fixture.pods.run.lock().step = 2;
    let before = fixture.job()["status"].take();
    let name = kueue.name();
    kueue.evict("Preempted", "to accommodate a workload of higher priority");
    let cause =
        format!("Workload {name} waits: Pending: to accommodate a workload of higher priority");
    wait_for_condition(&fixture, "Suspended", ["True", "Queued", &cause]);
    wait_for_pods(&fixture.namespace, 0);
    let message = "to accommodate a workload of higher priority";
    kueue.wait_for("QuotaReserved", ["False", "Pending", message]);
    kueue.wait_for("Requeued", ["True", "Preempted", message]);
    let reason = "The workload has no reservation";
    assert_eq!(kueue.condition("Admitted"), ["False", "NoReservation", reason]);
    assert_eq!(kueue.condition("PodsReady")[..2], ["False", "WaitForStart"]);
    assert_eq!(kueue.workload().unwrap()["status"].get("admission"), None);
    let queued = fixture.job()["status"].take();
    assert_eq!(
        (&queued["startTime"], &queued["activeSince"], &queued["progress"]["step"]),
        (&before["startTime"], &Value::Null, &json!(2)),
        "the run continues where it was drained: {queued:#}"
    );
    fixture.wait_until_idle();

    kueue.admit("reserved", None);
    fixture.wait_for("Ready");
    let pool = ".spec.nodeSelector.pool";
    assert_eq!(field(&fixture.namespace, "pod/sample-trainer-0", pool), "reserved");
    let status = fixture.job()["status"].take();
    let epoch = before["epoch"].as_u64().unwrap();
    assert_eq!(
        (status["epoch"].as_u64(), &status["restarts"]),
        (Some(epoch + 1), &json!(0)),
        "an eviction is no failure: {status:#}"
    );
}

#[test]
fn an_evicted_job_writes_a_checkpoint_before_its_pods_are_deleted() {
    let (fixture, kueue) = running("notice", &json!({"spec": {"drainTimeoutSeconds": 60}}));
    // The coordinator does not confirm that it has drained.
    fixture.pods.run.lock().end = Some("Draining");
    kueue.evict("PodsReadyTimeout", "exceeded the timeout");
    wait_until("the drain", LIMIT, || Ok(condition(&fixture, "Suspended")[1] == "Draining"))
        .unwrap_or_else(|error| panic!("{error:#}\n{}", fixture.output()));
    let message = condition(&fixture, "Succeeded")[2].clone();
    let start = format!(
        "Kueue evicted Workload {}: PodsReadyTimeout: exceeded the timeout; finishing the current \
         step and writing a checkpoint; the pods are deleted by ",
        kueue.name()
    );
    assert!(message.starts_with(&start), "{message}");
    fixture.wait_until_idle();
    wait_for_pods(&fixture.namespace, 3);
    assert_eq!(kueue.condition("QuotaReserved")[0], "True", "pods still use the quota");
    fixture.pods.run.lock().end = None;
    fixture.wait_for("Suspended");
    // Kueue queues it again after a backoff.
    kueue.wait_for("Requeued", ["False", "PodsReadyTimeout", "exceeded the timeout"]);
    wait_for_pods(&fixture.namespace, 0);
}

#[test]
fn a_job_whose_workload_is_deleted_stops_and_is_queued_again() {
    let (fixture, kueue) = running("no-workload", &json!({}));
    let first = kueue.uid();
    let workload = format!("workload/{}", kueue.name());
    fixture.namespace.kubectl.run(&["delete", &workload]).unwrap();
    kueue.wait_for_another(&first);
    wait_for_pods(&fixture.namespace, 0);
    kueue.admit("spot", None);
    fixture.wait_for("Ready");
}
