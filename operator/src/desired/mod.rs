//! Validated job → its objects. Pure, and cannot fail.
//!
//! ```text
//!  mounted into every pod      created per role
//!  ConfigMap run.json          StatefulSet <job>-inference    headless Service, PDB
//!  Secret tokens               StatefulSet <job>-evaluation   the same, if it has them
//!                              StatefulSet <job>-reward       the same, if it has them
//!                              StatefulSet <job>-teacher      the same, if it has them
//!                              StatefulSet <job>-coordinator  headless Service
//!  volumes of the job          StatefulSet <job>-trainer      headless Service
//!  run store                   StatefulSet <job>-trainer-<g>  headless Service, of a group
//!                              StatefulSet <job>-verifier     headless Service, if it has them
//!                              NetworkPolicies for all pods and for roles
//!                              PodGroup of engines and trainers, if they are a gang
//! ```
//!
//! A role without pods, such as the engines of a job that samples nothing, has only its
//! StatefulSet.
//!
//! Templates of existing pods are *pinned* ([`pin`]): until the job is resumed, they stay as first
//! rendered, whatever this version of the operator would render. An upgrade of the operator
//! therefore changes no pods.

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use serde_json::Value;

use crate::decide::Wanted;
use crate::validate::ValidatedJob;

pub mod certificates;
mod command;
mod config_map;
mod disruption_budget;
pub mod gang;
mod log;
pub mod meta;
pub mod network_policy;
pub mod pin;
mod pod;
mod probes;
pub(crate) mod requests;
mod rewards;
mod runner;
mod runner_copy;
mod secret;
mod service;
mod settings;
mod stateful_set;
mod template;
pub mod tokens;
pub mod topology;
mod volumes;

pub use command::PROGRAMS;
pub use config_map::run_config;
pub use meta::Role;
pub use pin::Pinned;
#[cfg(test)] // compared with the chart
pub(crate) use pod::{brief_tolerations, container_security, pod_security};
pub use settings::{Labels, Scrapers, Settings, cidr, labels};
pub use stateful_set::rendered_template;
pub use tokens::Tokens;

/// All objects of a job, ready to be applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Resources {
    pub config_map: ConfigMap,
    pub secret: Secret,
    pub network_policies: Vec<NetworkPolicy>,
    /// One per role of engines that has pods.
    pub disruption_budgets: Vec<PodDisruptionBudget>,
    /// One headless Service per role that has pods.
    pub services: Vec<Service>,
    /// StatefulSets, one per role; JSON, because templates keep fields that are newer than the
    /// types.
    pub stateful_sets: Vec<Value>,
}

/// Builds all objects. StatefulSets of roles that are not `wanted` have no replicas.
pub fn build(
    job: &ValidatedJob,
    wanted: impl Into<Wanted>,
    settings: &Settings,
    tokens: &Tokens,
    pinned: &Pinned,
) -> Resources {
    let wanted = wanted.into();
    let stateful_set = |role| stateful_set::build_stateful_set(job, role, wanted, settings, pinned);
    Resources {
        config_map: config_map::build_config_map(job, pinned),
        secret: secret::build_secret(job, tokens),
        network_policies: network_policy::build_network_policies(job, settings),
        disruption_budgets: Role::with_pods(&job.spec)
            .filter(|role| role.is_engine())
            .map(|role| disruption_budget::build_disruption_budget(job, role))
            .collect(),
        services: Role::with_pods(&job.spec)
            .map(|role| service::build_service(job, role))
            .collect(),
        stateful_sets: Role::of(&job.spec).map(stateful_set).collect(),
    }
}

#[cfg(test)]
mod tests;
