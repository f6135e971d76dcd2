//! What pods were made from, kept until none is wanted.
//!
//! A template is rendered when a role's StatefulSet goes from no pods to some: at the start and at a resume, the only moments at which the API server accepts a change of
//! what is in it. In between it is applied again as it was, from an annotation of the StatefulSet, and the run configuration from the ConfigMap.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PodTemplateSpec};
use rljob_crds::names::{ANNOTATION_TEMPLATE, RUN_CONFIG_FILE};

use super::Role;

/// What is to be applied again as it is.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Pinned {
    /// The text of `run.json`.
    pub run_config: Option<String>,
    /// Templates by role.
    pub templates: BTreeMap<Role, PodTemplateSpec>,
}

impl Pinned {
    /// What the live objects pin: nothing once no StatefulSet wants pods.
    pub fn from_live(config_map: Option<&ConfigMap>, stateful_sets: &BTreeMap<Role, StatefulSet>) -> Self {
        let wants_pods = |set: &StatefulSet| set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1) > 0;
        // One role that wants none (an `sft` job has no engines) must not unpin the rest, nor be rendered from another spec than they.
        if !stateful_sets.values().any(wants_pods) {
            return Self::default();
        }
        let run_config = config_map.and_then(|map| map.data.as_ref()?.get(RUN_CONFIG_FILE).cloned());
        let templates = stateful_sets.iter().filter_map(|(role, set)| Some((*role, template_of(set)?))).collect();
        Self { run_config, templates }
    }
}

/// The template that a StatefulSet carries in its annotation.
fn template_of(set: &StatefulSet) -> Option<PodTemplateSpec> {
    let text = set.metadata.annotations.as_ref()?.get(ANNOTATION_TEMPLATE)?;
    serde_json::from_str(text).ok()
}

/// The annotation's text.
pub(super) fn annotation(template: &PodTemplateSpec) -> BTreeMap<String, String> {
    // A template is plain data with text keys; its serialization has no way to fail.
    let text = serde_json::to_string(template).unwrap_or_default();
    BTreeMap::from([(ANNOTATION_TEMPLATE.to_owned(), text)])
}
