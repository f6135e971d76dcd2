//! What pods were made from, kept until none is wanted.
//!
//! Templates are rendered at the start and at a resume, when the coordinator's StatefulSet, which
//! is applied last, goes from no pod to one. Before and after, suspended and finished jobs
//! included, each is kept as it was, in an annotation of its StatefulSet, and the run configuration
//! in the ConfigMap, which carries its digest: one that somebody has altered pins nothing.
//!
//! ```text
//!  rendered now ─ same digest as what is pinned? ── yes ─▶ the text
//!                         │ no
//!                         └─▶ the mark `sha256:…` in its place ─ only if the object has to be applied ─▶ filled in from what lives
//! ```
//! Passes therefore hold digests and no texts, however large a fleet is and however old its
//! templates.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use rljob_crds::names::{ANNOTATION_TEMPLATE, RUN_CONFIG_FILE};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Role;
use crate::decide::WantedRoles;

/// What a mark begins with; no template and no run configuration does.
const MARK: &str = "sha256:";

/// What is to stay as it is: marks of the texts.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Pinned {
    /// Of `run.json`.
    pub run_config: Option<Arc<str>>,
    /// Of templates, by role.
    pub templates: BTreeMap<Role, Arc<str>>,
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
    /// The mark of the template as it was rendered, from the annotation; none if that is no
    /// template.
    pub template: Option<Arc<str>>,
}

impl Pinned {
    /// What the live objects pin: nothing while a start or a resume is under way.
    pub fn from_live(
        run_config: Option<&Arc<str>>,
        sets: &BTreeMap<Role, LiveSet>,
        wanted: WantedRoles,
    ) -> Self {
        // One that was cut short has given pods to some roles: those and the rest are rendered from
        // the same spec.
        let is_under_way = sets.get(&Role::Coordinator).is_none_or(|set| set.replicas == 0);
        if wanted != WantedRoles::Nothing && is_under_way {
            return Self::default();
        }
        let templates =
            sets.iter().filter_map(|(role, set)| Some((*role, set.template.clone()?))).collect();
        Self { run_config: run_config.cloned(), templates }
    }
}

/// What stands in the place of a text that stays as it lives.
pub fn mark(text: &str) -> String {
    format!("{MARK}{:x}", Sha256::digest(text))
}

/// The same of what may be a mark already.
pub fn marked(text: &str) -> String {
    if is_mark(text) { text.to_owned() } else { mark(text) }
}

/// SHA-256 of a text, in hexadecimal digits, or that of a text in whose place a mark stands.
pub fn digest(text: &str) -> String {
    marked(text).trim_start_matches(MARK).to_owned()
}

/// Whether a mark stands in the place of the text.
pub fn is_mark(text: &str) -> bool {
    text.starts_with(MARK)
}

/// The text, or the mark of another one that is pinned.
pub(super) fn unless_pinned(text: String, pinned: Option<&Arc<str>>) -> String {
    pinned.filter(|pinned| ***pinned != *mark(&text)).map_or(text, ToString::to_string)
}

/// The text of the annotation.
pub(super) fn text(template: &Value) -> String {
    template.to_string()
}

/// Whether an annotation holds a template.
pub fn is_template(annotation: &str) -> bool {
    serde_json::from_str::<PodTemplateSpec>(annotation).is_ok()
}

/// Whether the object, as it is to be applied, has a mark somewhere in the place of a text.
pub fn has_marks(wanted: &Value) -> bool {
    [template_text(wanted), run_config_text(wanted)].into_iter().flatten().any(is_mark)
}

/// Puts the live object's texts into the place of their marks. None if it no longer has them.
pub fn fill(mut wanted: Value, live: &Value) -> Option<Value> {
    if template_text(&wanted).is_some_and(is_mark) {
        let text = template_text(live)?;
        wanted["spec"]["template"] = serde_json::from_str(text).ok()?;
        wanted["metadata"]["annotations"][ANNOTATION_TEMPLATE] = text.into();
    }
    if run_config_text(&wanted).is_some_and(is_mark) {
        wanted["data"][RUN_CONFIG_FILE] = run_config_text(live)?.into();
    }
    Some(wanted)
}

/// The text of a StatefulSet's template annotation.
pub fn template_text(object: &Value) -> Option<&str> {
    object.pointer("/metadata/annotations")?.get(ANNOTATION_TEMPLATE)?.as_str()
}

/// The text of a ConfigMap's run configuration.
pub fn run_config_text(object: &Value) -> Option<&str> {
    object.pointer("/data")?.get(RUN_CONFIG_FILE)?.as_str()
}
