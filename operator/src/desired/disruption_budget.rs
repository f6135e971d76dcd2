//! PodDisruptionBudget of engines: drains evict one engine at a time. Trainers have no budget,
//! because the eviction of any trainer restarts the learner group.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Role, meta};
use crate::validate::ValidatedJob;

pub(super) fn build_disruption_budget(job: &ValidatedJob, role: Role) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: meta::child(job, meta::role_name(job, role), Some(role)),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(meta::role_selector(job, role)),
            // An engine that does not become ready must not block a drain forever.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    }
}
