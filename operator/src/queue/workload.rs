//! Kueue's Workload, reduced to the fields that the operator reads. Unknown fields are ignored.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Condition: quota is reserved.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// Condition: quota is reserved and all admission checks are ready.
pub const ADMITTED: &str = "Admitted";
/// Condition: the job must stop.
pub const EVICTED: &str = "Evicted";
/// Condition: the Workload is in its queue again, or not yet.
pub const REQUEUED: &str = "Requeued";
/// Condition: all pods are ready.
pub const PODS_READY: &str = "PodsReady";
/// Condition: the job has ended.
pub const FINISHED: &str = "Finished";

/// A Workload.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Workload {
    pub spec: Spec,
    pub status: Status,
}

/// Its desired part, which the operator writes.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    pub queue_name: String,
    pub pod_sets: Vec<PodSet>,
    pub priority_class_ref: Option<PriorityClass>,
    pub priority: Option<i32>,
    /// False after an administrator has deactivated it.
    pub active: Option<bool>,
}

/// Pods of one role.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct PodSet {
    pub name: String,
    pub count: i32,
}

/// Reference to the class that determines the priority.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityClass {
    pub group: String,
    pub kind: String,
    pub name: String,
}

/// Its observed part, which Kueue and the operator write.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    pub conditions: Vec<Condition>,
    pub admission: Option<Admission>,
    pub admission_checks: Vec<AdmissionCheck>,
    pub reclaimable_pods: Vec<PodSet>,
}

/// Quota that Kueue has reserved.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Admission {
    pub cluster_queue: String,
    pub pod_set_assignments: Vec<Assignment>,
}

/// Quota of one pod set.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Assignment {
    pub name: String,
    /// ResourceFlavor by resource.
    pub flavors: BTreeMap<String, String>,
    /// Admitted pods; those of the pod set if absent.
    pub count: Option<i32>,
    /// Domains of the pods, if the flavor has a topology.
    pub topology_assignment: Option<Value>,
}

/// Result of an admission check.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AdmissionCheck {
    pub name: String,
    pub pod_set_updates: Vec<PodSetUpdate>,
}

/// Changes of a pod set's template by an admission check.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSetUpdate {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Value>,
}

impl Workload {
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// The condition if it is True.
    pub fn holding(&self, type_: &str) -> Option<&Condition> {
        self.condition(type_).filter(|condition| condition.status == "True")
    }

    pub fn is_reserved(&self) -> bool {
        self.holding(QUOTA_RESERVED).is_some()
    }

    pub fn is_finished(&self) -> bool {
        self.holding(FINISHED).is_some()
    }

    /// Whether pods may exist: admitted, and not evicted or finished since.
    pub fn may_run(&self) -> bool {
        self.holding(ADMITTED).is_some() && self.holding(EVICTED).is_none() && !self.is_finished()
    }

    /// Pods of the pod set in the spec.
    pub fn count(&self, pod_set: &str) -> Option<i32> {
        let set = self.spec.pod_sets.iter().find(|set| set.name == pod_set)?;
        Some(set.count)
    }

    /// Pods that may run: admitted ones without those whose quota was returned. `None` without
    /// quota.
    pub fn granted(&self, pod_set: &str) -> Option<i32> {
        let admission = self.status.admission.as_ref().filter(|_| self.is_reserved())?;
        let count = self.count(pod_set).unwrap_or_default();
        let mut assignments = admission.pod_set_assignments.iter();
        let admitted = assignments.find(|assignment| assignment.name == pod_set)?.count;
        let reclaimable = self.status.reclaimable_pods.iter().find(|set| set.name == pod_set);
        let kept = count.saturating_sub(reclaimable.map_or(0, |set| set.count));
        Some(admitted.unwrap_or(count).min(kept))
    }
}
