//! A validated job → every object it needs. Pure and total: names cannot fail, nothing is looked
//! up.
//!
//! ```text
//!  ConfigMap run.json ─┐
//!  Secret tokens ──────┤ mounted into       StatefulSet <job>-inference ──── headless Service ── PodDisruptionBudget
//!  user's volumes ─────┤ every pod ────▶    StatefulSet <job>-coordinator ── headless Service
//!  run directories ────┘                    StatefulSet <job>-trainer ────── headless Service     NetworkPolicy around all
//! ```
//!
//! A template that pods were made from is *pinned*: until the job is resumed, it stays as it was
//! rendered ([`pin`]), whatever this version of the operator would render. An upgrade of the
//! operator therefore changes no pod.

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use serde_json::Value;

use crate::decide::WantedRoles;
use crate::validate::ValidatedJob;

mod config_map;
mod disruption_budget;
pub mod meta;
mod network_policy;
pub mod pin;
mod pod;
mod secret;
mod service;
mod stateful_set;
mod template;
pub mod tokens;
mod volumes;

pub use config_map::run_config;
pub use meta::Role;
pub use pin::Pinned;
pub(crate) use pod::{brief_tolerations, container_security, pod_security};
pub use tokens::Tokens;

/// What the operator adds of its own to what the job says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of every role that names none: the operator's own.
    pub image: String,
}

/// Every object of a job, ready to be applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Resources {
    /// The run configuration.
    pub config_map: ConfigMap,
    /// The tokens.
    pub secret: Secret,
    /// Who may reach the pods.
    pub network_policy: NetworkPolicy,
    /// How many engines may be drained at once.
    pub disruption_budget: PodDisruptionBudget,
    /// One headless Service a role.
    pub services: [Service; 3],
    /// StatefulSets, one per role; JSON, because templates keep fields that are newer than the types.
    pub stateful_sets: [Value; 3],
}

/// Builds every object. The StatefulSets want the pods of the roles that are `wanted`.
pub fn build(
    job: &ValidatedJob,
    wanted: WantedRoles,
    settings: &Settings,
    tokens: &Tokens,
    pinned: &Pinned,
) -> Resources {
    let stateful_set = |role| stateful_set::build_stateful_set(job, role, wanted, settings, pinned);
    Resources {
        config_map: config_map::build_config_map(job, pinned),
        secret: secret::build_secret(job, tokens),
        network_policy: network_policy::build_network_policy(job),
        disruption_budget: disruption_budget::build_disruption_budget(job),
        services: Role::ALL.map(|role| service::build_service(job, role)),
        stateful_sets: Role::ALL.map(stateful_set),
    }
}

#[cfg(test)]
mod tests;
