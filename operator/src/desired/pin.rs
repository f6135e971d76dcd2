//! Pinning: templates and run configuration of existing pods do not change.
//!
//! Templates are rendered at the start and at a resume, until the coordinator's StatefulSet, which
//! is applied last, requests a pod. At other times, also for suspended and finished jobs, an
//! annotation of each StatefulSet keeps its template, and the ConfigMap keeps the run configuration
//! and its digest. A run configuration that does not match its digest is not pinned.
//!
//! ```text
//!  rendered text ─ equal to the pinned digest? ── yes ─▶ the text
//!                │ no
//!                └─▶ its mark `sha256:…`, replaced by the observed text if the object is applied
//! ```
//!
//! Passes therefore hold digests instead of texts, for any number of jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use rljob_crds::names::{ANNOTATION_TEMPLATE, RUN_CONFIG_FILE};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Role;
use crate::decide::WantedRoles;

/// Prefix of marks; no template and no run configuration starts with it.
const MARK: &str = "sha256:";

/// Marks of the pinned texts.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Pinned {
    /// Mark of `run.json`.
    pub run_config: Option<Arc<str>>,
    /// Marks of templates, by role.
    pub templates: BTreeMap<Role, Arc<str>>,
}

/// Observed StatefulSet of a role.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LiveSet {
    /// `spec.replicas`.
    pub replicas: i32,
    /// Whether its controller observed the newest generation.
    pub settled: bool,
    /// Pods in its status.
    pub existing: i32,
    /// Mark of the rendered template, from the annotation; `None` if the annotation holds no
    /// template.
    pub template: Option<Arc<str>>,
}

impl Pinned {
    /// Marks pinned by observed objects; none during a start or a resume.
    pub fn from_live(
        run_config: Option<&Arc<str>>,
        sets: &BTreeMap<Role, LiveSet>,
        wanted: WantedRoles,
    ) -> Self {
        // An interrupted start has created pods of some roles; all roles are rendered again from
        // one spec.
        let is_under_way = sets.get(&Role::Coordinator).is_none_or(|set| set.replicas == 0);
        if wanted != WantedRoles::Nothing && is_under_way {
            return Self::default();
        }
        let templates =
            sets.iter().filter_map(|(role, set)| Some((*role, set.template.clone()?))).collect();
        Self { run_config: run_config.cloned(), templates }
    }
}

/// Mark of a text.
pub fn mark(text: &str) -> String {
    format!("{MARK}{:x}", Sha256::digest(text))
}

/// Mark of a text that may be a mark already.
pub fn marked(text: &str) -> String {
    if is_mark(text) { text.to_owned() } else { mark(text) }
}

/// Hexadecimal SHA-256 of a text, or of the text that a mark replaces.
pub fn digest(text: &str) -> String {
    marked(text).trim_start_matches(MARK).to_owned()
}

/// Whether the text is a mark.
pub fn is_mark(text: &str) -> bool {
    text.starts_with(MARK)
}

/// The text, or the mark of a different pinned text.
pub(super) fn unless_pinned(text: String, pinned: Option<&Arc<str>>) -> String {
    pinned.filter(|pinned| ***pinned != *mark(&text)).map_or(text, ToString::to_string)
}

/// Text of a template for the annotation.
pub(super) fn text(template: &Value) -> String {
    template.to_string()
}

/// Whether an annotation holds a template.
pub fn is_template(annotation: &str) -> bool {
    serde_json::from_str::<PodTemplateSpec>(annotation).is_ok()
}

/// Whether the object contains a mark.
pub fn has_marks(wanted: &Value) -> bool {
    [template_text(wanted), run_config_text(wanted)].into_iter().flatten().any(is_mark)
}

/// Replaces marks by the texts of the observed object. `None` if the observed texts changed.
pub fn fill(mut wanted: Value, live: &Value) -> Option<Value> {
    if template_text(&wanted).is_some_and(is_mark) {
        let text = template_text(live)?;
        *wanted.pointer_mut("/spec/template")? = serde_json::from_str(text).ok()?;
        let annotations = wanted.pointer_mut("/metadata/annotations")?;
        *annotations.get_mut(ANNOTATION_TEMPLATE)? = text.into();
    }
    if run_config_text(&wanted).is_some_and(is_mark) {
        *wanted.get_mut("data")?.get_mut(RUN_CONFIG_FILE)? = run_config_text(live)?.into();
    }
    Some(wanted)
}

/// Template annotation of a StatefulSet.
pub fn template_text(object: &Value) -> Option<&str> {
    object.pointer("/metadata/annotations")?.get(ANNOTATION_TEMPLATE)?.as_str()
}

/// Run configuration of a ConfigMap.
pub fn run_config_text(object: &Value) -> Option<&str> {
    object.pointer("/data")?.get(RUN_CONFIG_FILE)?.as_str()
}
