//! Observed children, reduced to what a pass needs: identity, owner, what the child pins, and
//! hashes that tell whether it still has the desired fields.
//!
//! ```text
//!  object ─ without status and bookkeeping ─┬─▶ fingerprint     identifies the result of an apply
//!                                           └─▶ field hashes    must contain the desired ones
//! ```
//!
//! A field hash is a digest of a value and its path: eight bytes, however long the texts are.
//! Templates and run configurations are hashed as their marks ([`crate::desired::pin`]). A template
//! is compared with the annotation beside it when it is read, so a single boolean tells whether it
//! was altered.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::DynamicObject;
use rljob_crds::RLJob;
use rljob_crds::names::{ANNOTATION_DIGEST, ANNOTATION_TEMPLATE, RUN_CONFIG_FILE};
use serde_json::{Value, json};

use crate::children::Kind;
use crate::desired::pin::{self, LiveSet};
use crate::queue::workload::Workload;

/// A child as the API server reported it last.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedChild {
    pub uid: Box<str>,
    pub version: Box<str>,
    /// UID of the controlling owner.
    pub owner: Option<Box<str>>,
    /// Whether the controlling owner is an RLJob. Names of children contain the job's name, so it
    /// has the name of the job that needs this one.
    pub is_of_job: bool,
    pub terminating: bool,
    /// Digest of everything except status and bookkeeping.
    pub fingerprint: u64,
    /// Mark of a ConfigMap's `run.json`, unless it was altered.
    pub run_config: Option<Arc<str>>,
    /// Size and pinned template of a StatefulSet.
    pub set: Option<LiveSet>,
    /// Content of a Workload of Kueue.
    pub workload: Option<Arc<Workload>>,
    /// Pods that a PodGroup needs.
    pub least_pods: Option<i64>,
    fields: FieldHashes,
}

/// A resourceVersion as a number. Versions of one resource are comparable (KEP-5504).
pub fn number(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// UID of the controlling owner.
pub fn owner(metadata: &ObjectMeta) -> Option<&str> {
    controller(metadata).map(|owner| owner.uid.as_str())
}

fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

impl ObservedChild {
    pub fn new(kind: Kind, object: &DynamicObject) -> Self {
        let metadata = &object.metadata;
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        // The object was parsed from JSON, so it serializes.
        let whole = without_bookkeeping(serde_json::to_value(object).unwrap_or_default());
        Self {
            uid: text(&metadata.uid),
            version: text(&metadata.resource_version),
            owner: owner(metadata).map(Into::into),
            is_of_job: controller(metadata).is_some_and(|owner| owner.kind == RLJob::kind(&())),
            terminating: metadata.deletion_timestamp.is_some(),
            fingerprint: digest(&whole),
            run_config: (kind == Kind::ConfigMap).then(|| run_config(&whole)).flatten(),
            set: (kind == Kind::StatefulSet).then(|| stateful_set(object, &whole)),
            workload: (kind == Kind::Workload).then(|| Arc::new(workload(object))),
            least_pods: matches!(kind, Kind::PodGroup(_)).then(|| least_pods(object)).flatten(),
            fields: FieldHashes::of(&shortened(kind, whole, is_as_annotated, pin::mark)),
        }
    }

    /// Whether it has every desired field.
    pub fn satisfies(&self, desired: &DesiredChild) -> bool {
        self.fields.contain(&desired.fields)
    }
}

/// The desired fields of a child, to compare with an [`ObservedChild`].
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredChild {
    /// Equal for equal objects.
    pub digest: u64,
    fields: FieldHashes,
}

impl DesiredChild {
    /// Takes the fields of an object. Texts and their marks give the same result.
    pub fn new(kind: Kind, object: &Value) -> Self {
        let fields = FieldHashes::of(&shortened(
            kind,
            without_bookkeeping(object.clone()),
            |_| true,
            pin::marked,
        ));
        Self { digest: digest(&fields), fields }
    }
}

/// Content that is not understood counts as a Workload without quota.
fn workload(object: &DynamicObject) -> Workload {
    serde_json::from_value(object.data.clone()).unwrap_or_default()
}

fn least_pods(object: &DynamicObject) -> Option<i64> {
    let native = object.data.pointer("/spec/schedulingPolicy/gang/minCount");
    native.or_else(|| object.data.pointer("/spec/minMember"))?.as_i64()
}

fn stateful_set(object: &DynamicObject, whole: &Value) -> LiveSet {
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
    // Earlier releases wrote no digest.
    let annotated = whole
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get(ANNOTATION_DIGEST));
    annotated.is_none_or(|digest| *digest == pin::digest(&mark)).then(|| mark.into())
}

/// The fields that an apply can set: no status, and only labels, annotations and owners of the
/// metadata.
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

/// Replaces large texts by their marks.
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
            shorten(whole.pointer_mut("/data").and_then(|data| data.get_mut(RUN_CONFIG_FILE)));
        }
        Kind::Secret
        | Kind::NetworkPolicy
        | Kind::PodDisruptionBudget
        | Kind::Service
        | Kind::Workload
        | Kind::PodGroup(_) => {}
    }
    whole
}

/// Whether a StatefulSet's template has every field of its annotation.
fn is_as_annotated(whole: &Value) -> bool {
    let annotated = pin::template_text(whole).and_then(|text| serde_json::from_str(text).ok());
    annotated.is_some_and(|annotated: Value| {
        whole
            .pointer("/spec/template")
            .is_some_and(|template| FieldHashes::of(template).contain(&FieldHashes::of(&annotated)))
    })
}

fn digest<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Sorted hashes of every leaf value with its path. Empty values have none, because they are
/// equivalent to absent ones. The presence and the length of a list are hashed as well.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FieldHashes {
    found: Box<[u64]>,
    /// Hashes that the empty lists would have if they had items.
    empty_lists: Box<[u64]>,
}

impl FieldHashes {
    fn of(value: &Value) -> Self {
        let (mut found, mut empty_lists) = (Vec::new(), Vec::new());
        collect(value, 0, &mut found, &mut empty_lists);
        found.sort_unstable();
        Self { found: found.into(), empty_lists: empty_lists.into() }
    }

    /// Whether all desired hashes are present. Objects may have more fields, lists may not have
    /// more items.
    fn contain(&self, desired: &Self) -> bool {
        let has = |hash| self.found.binary_search(hash).is_ok();
        desired.found.iter().all(has) && !desired.empty_lists.iter().any(has)
    }
}

fn collect(value: &Value, path: u64, found: &mut Vec<u64>, empty_lists: &mut Vec<u64>) {
    match value {
        Value::Null => {}
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| collect(value, digest(&(path, key)), found, empty_lists)),
        Value::Array(items) if items.is_empty() => empty_lists.push(digest(&(path, "items"))),
        Value::Array(items) => {
            found.extend([digest(&(path, "items")), digest(&(path, "length", items.len()))]);
            for (index, value) in items.iter().enumerate() {
                collect(value, digest(&(path, index)), found, empty_lists);
            }
        }
        value => found.push(digest(&(path, value))),
    }
}

#[cfg(test)]
mod tests;
