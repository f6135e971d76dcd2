//! What pods were made from, kept until none is wanted.
//!
//! Templates are rendered at the start and at a resume, when the coordinator's StatefulSet, which is applied last, goes from no pod to one. Before and after, suspended and
//! finished jobs included, each is applied again as it was, from an annotation of its StatefulSet, and the run configuration from the ConfigMap, which carries its digest: one
//! that somebody has altered pins nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use rljob_crds::names::ANNOTATION_TEMPLATE;
use sha2::{Digest, Sha256};

use super::Role;
use crate::decide::Wanted;

/// What is to be applied again as it is.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Pinned {
    /// The text of `run.json`.
    pub run_config: Option<String>,
    /// Templates by role.
    pub templates: BTreeMap<Role, PodTemplateSpec>,
}

/// A role's StatefulSet as it lives.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LiveSet {
    /// Pods that it is to have.
    pub replicas: i32,
    /// Whether its controller has seen its newest generation.
    pub settled: bool,
    /// Pods that its controller counts.
    pub existing: i32,
    /// The template as it was rendered, from the annotation.
    pub template: Option<Arc<str>>,
}

impl Pinned {
    /// What the live objects pin: nothing while a start or a resume is under way.
    pub fn from_live(run_config: Option<&str>, sets: &BTreeMap<Role, LiveSet>, wanted: Wanted) -> Self {
        // One that was cut short has given pods to some roles: those and the rest are rendered from the same spec.
        let is_under_way = sets.get(&Role::Coordinator).is_none_or(|set| set.replicas == 0);
        if wanted != Wanted::Nothing && is_under_way {
            return Self::default();
        }
        let template = |set: &LiveSet| serde_json::from_str(set.template.as_deref()?).ok();
        let templates = sets.iter().filter_map(|(role, set)| Some((*role, template(set)?))).collect();
        Self { run_config: run_config.map(ToOwned::to_owned), templates }
    }
}

/// SHA-256 of a run configuration, as its ConfigMap carries it.
pub fn digest(run_config: &str) -> String {
    format!("{:x}", Sha256::digest(run_config))
}

/// The annotation's text.
pub(super) fn annotation(template: &PodTemplateSpec) -> BTreeMap<String, String> {
    // A template is plain data with text keys; its serialization has no way to fail.
    let text = serde_json::to_string(template).unwrap_or_default();
    BTreeMap::from([(ANNOTATION_TEMPLATE.to_owned(), text)])
}
