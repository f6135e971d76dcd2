//! A child as it lives, in the little that passes need of it: who it is, whose it is, what it pins,
//! and enough to tell whether it still is as wanted.
//!
//! ```text
//!  object ─ without status and bookkeeping ─┬─▶ fingerprint     what an apply left is known again by it
//!                                           └─▶ leaves          what is wanted must be among them
//! ```
//! A leaf is a digest of a value and its path: eight bytes, however long the texts are. Templates
//! and run configurations have one for their mark ([`crate::desired::pin`]). A template is compared
//! with the annotation beside it when it is read, so that one word says whether somebody has
//! altered it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use rljob_crds::names::{ANNOTATION_DIGEST, ANNOTATION_TEMPLATE, RUN_CONFIG_FILE};
use serde_json::{Value, json};

use crate::children::Kind;
use crate::desired::pin::{self, LiveSet};

/// A child as it lives.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Its UID.
    pub uid: Box<str>,
    /// Its resourceVersion.
    pub version: Box<str>,
    /// UID of its controlling owner.
    pub owner: Option<Box<str>>,
    /// Whether it is on its way out.
    pub terminating: bool,
    /// Of everything but status and bookkeeping.
    pub fingerprint: u64,
    /// Of a ConfigMap: the mark of `run.json`, unless somebody has altered it.
    pub run_config: Option<Arc<str>>,
    /// Of a StatefulSet: its size and what it pins.
    pub set: Option<LiveSet>,
    leaves: Leaves,
}

/// A resourceVersion as a number: those of one resource can be compared (KEP-5504).
pub fn number(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// UID of the controlling owner.
pub fn owner(metadata: &ObjectMeta) -> Option<&str> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| owner.uid.as_str())
}

impl Live {
    /// Takes of an object what is needed.
    pub fn new(kind: Kind, object: &DynamicObject) -> Self {
        let metadata = &object.metadata;
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        // It came as JSON.
        let whole = without_bookkeeping(serde_json::to_value(object).unwrap_or_default());
        Self {
            uid: text(&metadata.uid),
            version: text(&metadata.resource_version),
            owner: owner(metadata).map(Into::into),
            terminating: metadata.deletion_timestamp.is_some(),
            fingerprint: digest(&whole),
            run_config: (kind == Kind::ConfigMap).then(|| run_config(&whole)).flatten(),
            set: (kind == Kind::StatefulSet).then(|| live_set(object, &whole)),
            leaves: Leaves::of(&shortened(kind, whole, is_as_annotated, pin::mark)),
        }
    }

    /// Whether it has all that is wanted, as [`Wanted::new`] took it.
    pub fn holds(&self, wanted: &Wanted) -> bool {
        self.leaves.contain(&wanted.leaves)
    }
}

/// What is wanted of a child, to be compared with what lives.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The same for the same object.
    pub digest: u64,
    leaves: Leaves,
}

impl Wanted {
    /// Of an object that is to exist. It is the same whether it has texts or marks of them.
    pub fn new(kind: Kind, object: &Value) -> Self {
        let leaves = Leaves::of(&shortened(
            kind,
            without_bookkeeping(object.clone()),
            |_| true,
            pin::marked,
        ));
        Self { digest: digest(&leaves), leaves }
    }
}

fn live_set(object: &DynamicObject, whole: &Value) -> LiveSet {
    let number = |path: &str| object.data.pointer(path).and_then(Value::as_i64);
    let count = |path: &str| number(path).and_then(|count| i32::try_from(count).ok());
    LiveSet {
        replicas: count("/spec/replicas").unwrap_or(1),
        settled: number("/status/observedGeneration") >= object.metadata.generation,
        existing: count("/status/replicas").unwrap_or(0),
        template: pin::template_text(whole)
            .filter(|text| pin::is_template(text))
            .map(|text| pin::mark(text).into()),
    }
}

fn run_config(whole: &Value) -> Option<Arc<str>> {
    let mark = pin::mark(pin::run_config_text(whole)?);
    // Operators of before wrote no digest.
    let said = whole
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get(ANNOTATION_DIGEST));
    said.is_none_or(|said| *said == pin::digest(&mark)).then(|| mark.into())
}

/// What one can want: no status, and of the metadata no more than labels, annotations and owners.
fn without_bookkeeping(mut whole: Value) -> Value {
    if let Some(fields) = whole.as_object_mut() {
        fields.retain(|field, _| !matches!(field.as_str(), "apiVersion" | "kind" | "status"));
        if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|field, _| {
                matches!(field.as_str(), "labels" | "annotations" | "ownerReferences")
            });
        }
    }
    whole
}

/// The same with marks in place of what is large.
fn shortened(
    kind: Kind,
    mut whole: Value,
    is_as_annotated: impl Fn(&Value) -> bool,
    mark: impl Fn(&str) -> String,
) -> Value {
    let shorten = |text: Option<&mut Value>| {
        if let Some(text) = text {
            *text = text.as_str().map_or(Value::Null, |text| mark(text).into());
        }
    };
    match kind {
        Kind::StatefulSet => {
            let intact = is_as_annotated(&whole);
            if let Some(spec) = whole.get_mut("spec").and_then(Value::as_object_mut) {
                spec.insert("template".to_owned(), json!({ "asAnnotated": intact }));
            }
            shorten(
                whole
                    .pointer_mut("/metadata/annotations")
                    .and_then(|annotations| annotations.get_mut(ANNOTATION_TEMPLATE)),
            );
        }
        Kind::ConfigMap => {
            shorten(whole.pointer_mut("/data").and_then(|data| data.get_mut(RUN_CONFIG_FILE)))
        }
        Kind::Secret | Kind::NetworkPolicy | Kind::PodDisruptionBudget | Kind::Service => {}
    }
    whole
}

/// Whether a StatefulSet's template has all that its annotation says.
fn is_as_annotated(whole: &Value) -> bool {
    let annotated = pin::template_text(whole).and_then(|text| serde_json::from_str(text).ok());
    annotated.is_some_and(|annotated: Value| {
        whole
            .pointer("/spec/template")
            .is_some_and(|template| Leaves::of(template).contain(&Leaves::of(&annotated)))
    })
}

fn digest<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Digests of every leaf of a value with its path, in order. What is empty has none: it may as well
/// be absent. That a list has items, and how many, are leaves too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leaves {
    found: Box<[u64]>,
    /// What would be found too if the empty lists had items.
    lists: Box<[u64]>,
}

impl Leaves {
    fn of(value: &Value) -> Self {
        let (mut found, mut lists) = (Vec::new(), Vec::new());
        collect(value, 0, &mut found, &mut lists);
        found.sort_unstable();
        Self { found: found.into(), lists: lists.into() }
    }

    /// Whether all of those are among these: objects may have more fields, lists may not have more
    /// items.
    fn contain(&self, wanted: &Self) -> bool {
        let has = |leaf| self.found.binary_search(leaf).is_ok();
        wanted.found.iter().all(has) && !wanted.lists.iter().any(has)
    }
}

fn collect(value: &Value, path: u64, found: &mut Vec<u64>, lists: &mut Vec<u64>) {
    match value {
        Value::Null => {}
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| collect(value, digest(&(path, key)), found, lists)),
        Value::Array(items) if items.is_empty() => lists.push(digest(&(path, "items"))),
        Value::Array(items) => {
            found.extend([digest(&(path, "items")), digest(&(path, "length", items.len()))]);
            items
                .iter()
                .enumerate()
                .for_each(|(index, value)| collect(value, digest(&(path, index)), found, lists));
        }
        value => found.push(digest(&(path, value))),
    }
}

#[cfg(test)]
mod tests;
