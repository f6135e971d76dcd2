//! Priorities of queued jobs.

use serde_json::json;

use super::super::cluster;
use super::kueue::{Kueue, queued};
use super::{Fixture, start, wait_for_condition};

#[test]
fn a_job_waits_for_its_priority_class_and_gets_its_value() {
    let label = json!({"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "late"}}});
    let mut fixture = Fixture::new("late-class", &queued(&label));
    let kueue = Kueue::of(&fixture);
    fixture.start_queued_operator();
    let message =
        "WorkloadPriorityClass late does not exist, so that the job cannot be queued; create it";
    wait_for_condition(&fixture, "Suspended", ["True", "Queued", message]);
    assert_eq!(kueue.workload(), None);
    let class = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "late"}, "value": 1000,
    });
    cluster().kubectl().apply(&class.to_string()).unwrap();
    kueue.wait_for_workload();
    let spec = kueue.workload().unwrap()["spec"].take();
    assert_eq!(
        (&spec["priority"], &spec["priorityClassRef"]),
        (
            &json!(1000),
            &json!({"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "late"})
        )
    );
}

#[test]
fn without_a_label_the_class_of_the_pods_is_the_priority() {
    let class = json!({"spec": {"scheduling": {"priorityClassName": "system-node-critical"}}});
    let (_fixture, kueue) = start("pod-class", &class);
    let spec = kueue.workload().unwrap()["spec"].take();
    let class = json!({
        "group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "system-node-critical",
    });
    assert_eq!((&spec["priority"], &spec["priorityClassRef"]), (&json!(2_000_001_000), &class));
}
