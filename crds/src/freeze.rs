//! Mutability of the spec: generated rules that freeze every field unless it is listed.
//!
//! ```text
//!  not started ──▶ everything may change
//!  started     ──▶ MUTABLE may change;  suspended: everything except IDENTITY
//!  finished    ──▶ MUTABLE may change; succeeded: training.steps may be raised
//!  rollbackTo  ──▶ as other fields; a started run has a checkpoint of its step
//! ```
//!
//! In free-form objects, such as the sources of volumes, CEL compares the number of fields and the
//! values of equal names: it does not see the replacement of one unnamed field by another.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, ValidationRule,
};
use serde_json::{Map, Value};

/// Fields that may change at any time.
pub const MUTABLE: [&str; 12] = [
    "suspend",
    "inference.replicas",
    "verifiers.minReplicas",
    "verifiers.maxReplicas",
    "checkpoint",
    "failurePolicy",
    "drainTimeoutSeconds",
    "startupDeadlineSeconds",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
    "storage.s3.credentialsSecretRef",
    "storage.s3.endpoint",
];

/// Immutable from the creation on, by a separate rule.
const MANAGED_BY: &str = "managedBy";

/// Fields that never change once the run has started, because its checkpoints fit nothing else.
pub const IDENTITY: [&str; 11] = [
    "model.path",
    "model.huggingFace.repo",
    "model.huggingFace.revision",
    "model.rljob",
    "model.weights",
    "storage.persistentVolumeClaim",
    "storage.hostPath",
    "storage.s3.bucket",
    "storage.s3.prefix",
    "algorithm",
    "lora",
];

/// Whether `ppo` has the same critic, since checkpoints of one fit no other: a separate model or a
/// head on the policy, of values that are normalized or not.
const SAME_CRITIC: &str = "(!has(self.spec.algorithm.ppo) || !has(oldSelf.spec.algorithm.ppo) || \
    has(self.spec.algorithm.ppo.valueHead) == has(oldSelf.spec.algorithm.ppo.valueHead) && \
    has(self.spec.algorithm.ppo.valueNormalization) == \
    has(oldSelf.spec.algorithm.ppo.valueNormalization))";

const STARTED: &str = "has(oldSelf.status) && has(oldSelf.status.startTime)";
const PROGRESS: &str = "has(oldSelf.status) && has(oldSelf.status.progress)";
const FINISHED: &str = "has(oldSelf.status.completionTime)";
const SUSPENDED: &str = "oldSelf.spec.suspend && has(oldSelf.status.conditions) && \
    oldSelf.status.conditions.exists(c, c.type == 'Suspended' && c.status == 'True')";
const SUCCEEDED: &str = "has(oldSelf.status.conditions) && \
    oldSelf.status.conditions.exists(c, c.type == 'Succeeded' && c.status == 'True')";
/// A succeeded run resumes when it is raised.
const STEPS: &str = "training.steps";

/// Whether a started run is as long as before, or longer, if its length is a number of epochs: what
/// is done is known in steps only.
const EPOCHS: &str = "has(self.spec.training.epochs) == has(oldSelf.spec.training.epochs) && \
    (!has(self.spec.training.epochs) || \
    self.spec.training.epochs >= oldSelf.spec.training.epochs)";

/// Whether a new request to roll back names a checkpoint of the run.
const ROLLBACK: &str = "!has(self.spec.rollbackTo) || (has(oldSelf.spec.rollbackTo) && \
    self.spec.rollbackTo == oldSelf.spec.rollbackTo) || (has(oldSelf.status.checkpoints) && \
    oldSelf.status.checkpoints.exists(c, c.step == self.spec.rollbackTo.step))";

/// Fields that may change between two starts of a local run, in addition to [`MUTABLE`]: where and
/// with what the run executes, and to which checkpoint it goes back.
const LOCAL: [&str; 10] = [
    "inference",
    "evaluation",
    "trainer",
    "coordinator",
    "verifiers",
    "scheduling",
    "volumes",
    "rollbackTo",
    STEPS,
    "training.epochs",
];

/// Paths of fields that differ between two specs of a local run and may not change without the
/// user's consent.
pub fn frozen_changes(old: &Value, new: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    differences(old, new, "", &mut paths);
    paths
}

fn differences(old: &Value, new: &Value, path: &str, paths: &mut Vec<String>) {
    let is_listed = |field: &str| field == path || path.starts_with(&format!("{field}."));
    if old == new || MUTABLE.iter().chain(&LOCAL).any(|field| is_listed(field)) {
        return;
    }
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        return paths.push(format!("spec.{path}"));
    };
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let of = |fields: &Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
        differences(&of(before), &of(after), &below, paths);
    }
}

/// The rules of the root object.
pub fn rules(spec: &JSONSchemaProps) -> Vec<ValidationRule> {
    let identity = format!("!({STARTED}) || ({})", all(&identity(spec)));
    let frozen = all(&unchanged(spec, "", &[&MUTABLE[..], &[MANAGED_BY]].concat()));
    let running = format!("!({STARTED}) || {FINISHED} || ({SUSPENDED}) || ({frozen})");
    let others = all(&unchanged(spec, "", &[&MUTABLE[..], &[MANAGED_BY, STEPS]].concat()));
    let (new, old) = (format!("self.spec.{STEPS}"), format!("oldSelf.spec.{STEPS}"));
    // An evaluation has no steps.
    let steps = format!(
        "has({new}) == has({old}) && (!has({new}) || {new} == {old} || ({new} > {old} && \
            {SUCCEEDED}))"
    );
    let finished = format!("!({STARTED}) || !{FINISHED} || (({steps}) && {others})");
    let enough = format!(
        "!({PROGRESS}) || !has({new}) || !has({old}) || {new} >= {old} || \
                {new} >= oldSelf.status.progress.step"
    );
    vec![
        rule(
            &identity,
            "the run has started: spec.model, spec.lora, the location of spec.storage, the kind of \
                spec.algorithm, and whether ppo has a valueHead and valueNormalization, cannot \
                change",
        ),
        rule(
            &running,
            "the run has started: to change this field, set spec.suspend to true, wait for \
                condition Suspended, edit the spec and set spec.suspend to false; without \
                suspension only suspend, inference.replicas, verifiers.minReplicas, \
                verifiers.maxReplicas, checkpoint, failurePolicy, drainTimeoutSeconds, \
                startupDeadlineSeconds, activeDeadlineSeconds, ttlSecondsAfterFinished, \
                storage.s3.credentialsSecretRef and storage.s3.endpoint can change",
        ),
        rule(
            &finished,
            "the run has finished: its spec cannot change; to train a succeeded run further, raise \
                training.steps; to change anything else, training.epochs too, create an RLJob with \
                restoreFrom.rljob",
        ),
        rule(&enough, "spec.training.steps must be at least the number of steps that are done"),
        rule(
            &format!("!({STARTED}) || ({EPOCHS})"),
            "the run has started: spec.training.epochs cannot be lowered, and a run keeps either \
                steps or epochs",
        ),
        rule(
            &format!("!({STARTED}) || {ROLLBACK}"),
            "spec.rollbackTo.step must be the step of a checkpoint in status.checkpoints",
        ),
    ]
}

fn rule(rule: &str, message: &str) -> ValidationRule {
    ValidationRule {
        rule: rule.to_owned(),
        message: Some(message.to_owned()),
        ..ValidationRule::default()
    }
}

fn all(terms: &[String]) -> String {
    terms.join(" && ")
}

/// Terms that hold if the identity of the run is unchanged.
fn identity(spec: &JSONSchemaProps) -> Vec<String> {
    let is_outside = |path: &str| {
        path != "algorithm"
            && !IDENTITY
                .iter()
                .any(|field| *field == path || field.starts_with(&format!("{path}.")))
            && !IDENTITY.iter().any(|field| path.starts_with(&format!("{field}.")))
    };
    let mut terms: Vec<String> = Vec::new();
    for (name, property) in spec.properties.iter().flatten() {
        if name == "algorithm" {
            // Only the kind: which member of the union is set.
            let kinds = property.properties.iter().flatten().map(|(kind, _)| {
                let field = format!("spec.algorithm.{kind}");
                format!("has(self.{field}) == has(oldSelf.{field})")
            });
            terms.extend(kinds);
            terms.push(SAME_CRITIC.to_owned());
        } else if !is_outside(name) {
            let mut outside = Vec::new();
            leaves(property, name, &mut |path| {
                if is_outside(path) {
                    outside.push(path.to_owned());
                }
            });
            let outside: Vec<&str> = outside.iter().map(String::as_str).collect();
            terms.extend(field_unchanged(spec, name, property, &outside));
        }
    }
    terms
}

/// Calls `visit` for each property below `path`.
fn leaves(schema: &JSONSchemaProps, path: &str, visit: &mut impl FnMut(&str)) {
    for (name, property) in schema.properties.iter().flatten() {
        let below = format!("{path}.{name}");
        visit(&below);
        leaves(property, &below, visit);
    }
}

/// Terms that hold if every field below `path` is unchanged, except the listed ones.
fn unchanged(schema: &JSONSchemaProps, path: &str, except: &[&str]) -> Vec<String> {
    let properties = schema.properties.iter().flatten();
    properties
        .flat_map(|(name, property)| {
            let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            field_unchanged(schema, &below, property, except)
        })
        .collect()
}

fn field_unchanged(
    parent: &JSONSchemaProps,
    path: &str,
    property: &JSONSchemaProps,
    except: &[&str],
) -> Vec<String> {
    if except.contains(&path) {
        return Vec::new();
    }
    let name = path.rsplit('.').next().unwrap_or(path);
    let is_required = parent.required.iter().flatten().any(|required| required == name);
    let is_present = is_required || property.default.is_some();
    let (new, old) = (format!("self.spec.{path}"), format!("oldSelf.spec.{path}"));
    let holds = if except.iter().any(|field| field.starts_with(&format!("{path}."))) {
        all(&unchanged(property, path, except))
    } else {
        format!("{new} == {old}")
    };
    if is_present {
        Some(holds).filter(|holds| !holds.is_empty()).into_iter().collect()
    } else if holds.is_empty() {
        vec![format!("has({new}) == has({old})")]
    } else {
        vec![format!("has({new}) == has({old})"), format!("(!has({new}) || {holds})")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(json: serde_json::Value) -> JSONSchemaProps {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_new_field_is_frozen_unless_it_is_listed() {
        let spec = schema(serde_json::json!({
            "required": ["training"],
            "properties": {
                "training": {"required": ["steps"], "properties": {"steps": {}, "later": {}}},
                "suspend": {"default": false},
                "inference": {"default": {}, "properties": {"replicas": {"default": 1}}},
                "newField": {},
            },
        }));
        let except = [&MUTABLE[..], &["training.steps"]].concat();
        assert_eq!(
            unchanged(&spec, "", &except),
            [
                "has(self.spec.newField) == has(oldSelf.spec.newField)",
                "(!has(self.spec.newField) || self.spec.newField == oldSelf.spec.newField)",
                "has(self.spec.training.later) == has(oldSelf.spec.training.later) && \
                    (!has(self.spec.training.later) || \
                    self.spec.training.later == oldSelf.spec.training.later)",
            ]
        );
    }

    #[test]
    fn every_listed_field_exists() {
        let crd = crate::crd();
        let root = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        let spec = root.properties.unwrap().remove("spec").unwrap();
        let mut known = Vec::new();
        for (name, property) in spec.properties.iter().flatten() {
            known.push(name.clone());
            leaves(property, name, &mut |path| known.push(path.to_owned()));
        }
        for field in MUTABLE.iter().chain(&IDENTITY) {
            assert!(known.iter().any(|path| path == field), "{field}");
        }
    }
}
