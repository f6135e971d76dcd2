//! Workloads in the states that Kueue leaves them in.

use serde_json::{Value, json};

use super::workload::Workload;
use rljob_crds::names::LABEL_QUEUE;

use super::workload_name;
use crate::validate::ValidatedJob;
use crate::validate::test_support::validated;

/// The minimal job, of which 2 engines are wanted, in the queue `research`.
pub fn queued_job() -> ValidatedJob {
    let mut job = validated();
    job.labels.insert(LABEL_QUEUE.to_owned(), "research".to_owned());
    assert!(workload_name(&job).starts_with("rljob-sums-"));
    job
}

pub fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    })
}

/// The job's Workload with this status.
pub fn workload(status: &Value) -> Workload {
    let set = |name: &str, count: i32| json!({"name": name, "count": count});
    let object = json!({
        "spec": {
            "queueName": "research",
            "podSets": [set("inference", 2), set("coordinator", 1), set("trainer", 1)],
        },
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

/// The job's Workload after an admission with this number of engines.
pub fn admitted(engines: i32) -> Workload {
    let flavors = json!({"cpu": "spot", "memory": "spot"});
    let assignment =
        |name: &str, count: i32| json!({"name": name, "count": count, "flavors": flavors});
    workload(&json!({
        "conditions": [
            condition("QuotaReserved", "True", "QuotaReserved", "reserved"),
            condition("Admitted", "True", "Admitted", "admitted"),
        ],
        "admission": {
            "clusterQueue": "cluster",
            "podSetAssignments": [
                assignment("inference", engines), assignment("coordinator", 1),
                assignment("trainer", 1),
            ],
        },
    }))
}
