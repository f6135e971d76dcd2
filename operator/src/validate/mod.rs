//! Validation: RLJob → [`ValidatedJob`], or every problem with its path. Pure.
//!
//! [`document`] reads YAML or JSON text with several objects per file, and adds the line of each
//! problem. [`schema`] checks a value against the schema of the CRD. [`rules`] checks rules across
//! fields: those that the API server checks by CEL, and those that CEL cannot express. [`unknown`]
//! finds fields of pod templates that core v1 does not have. `rljob validate` therefore reports,
//! without a cluster, the problems that an operator with `--allow-host-path` would report, and
//! unknown fields of templates, which the operator keeps.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use kube::ResourceExt;
use rljob_crds::{RLJob, RLJobSpec};

pub mod document;

mod locate;
mod misspelled;
mod pod_templates;
mod problem;
mod relatives;
mod rules;
mod schema;
mod unknown;
mod unvalidated;
mod warnings;

pub use document::{job_text, parse_jobs};
pub use problem::{InvalidSpec, Policy, Problem};
pub use unvalidated::UnvalidatedJob;
pub use warnings::{cluster_warnings, local_warnings, warnings};

/// Identity and spec of an RLJob. A [`ValidatedJob`] is one whose spec was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Namespace of the RLJob.
    pub namespace: String,
    /// Name of the RLJob.
    pub name: String,
    /// UID of the RLJob; empty without an API server.
    pub uid: String,
    /// Generation of the spec; 0 without an API server.
    pub generation: i64,
    /// Labels of the RLJob.
    pub labels: BTreeMap<String, String>,
    /// The spec with its defaults.
    pub spec: RLJobSpec,
}

impl From<&RLJob> for Job {
    fn from(object: &RLJob) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_else(|| "default".to_owned()),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            labels: object.labels().clone(),
            spec: object.spec.clone(),
        }
    }
}

/// A job that can run. Children are built from this type only.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedJob(Job);

impl Deref for ValidatedJob {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.0
    }
}

impl DerefMut for ValidatedJob {
    fn deref_mut(&mut self) -> &mut Job {
        &mut self.0
    }
}

/// Checks a job. Its namespace is `default` if it has none.
///
/// # Errors
/// [`InvalidSpec`] with every problem across fields. Types and ranges were checked by the API
/// server or by [`parse_jobs`].
pub fn validate(job: &RLJob, policy: Policy) -> Result<ValidatedJob, InvalidSpec> {
    let problems = rules::problems(job, policy);
    if !problems.is_empty() {
        return Err(InvalidSpec { problems });
    }
    Ok(ValidatedJob(job.into()))
}

/// A small valid GRPO job, read by the real parser. Values differ from defaults, so that swapped
/// arguments fail tests.
#[cfg(test)]
pub(crate) mod test_support {
    use super::{Policy, ValidatedJob, parse_jobs, validate};
    use rljob_crds::RLJob;
    use serde_json::Value;

    pub const MINIMAL: &str = "
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: sums, namespace: lab, uid: 11111111-2222-3333-4444-555555555555, generation: 4}
spec:
  model: {path: /models/tiny}
  volumes: [{name: models, mountPath: /models, persistentVolumeClaim: {claimName: weights}}]
  storage: {persistentVolumeClaim: {claimName: runs, subPath: team-a}}
  dataset: {train: {path: /models/train.jsonl, prompt: '{{question}}', answer: answer}}
  rewards: [{name: correct, math: {}}]
  algorithm: {grpo: {}}
  training: {steps: 10}
  inference: {replicas: 2}
  trainer: {processesPerReplica: 2}
  weightSync: {method: Disk}
";

    pub fn minimal() -> RLJob {
        parse_jobs(MINIMAL).unwrap().remove(0)
    }

    /// The minimal job with a merge patch of its spec.
    pub fn with_spec(patch: &Value) -> ValidatedJob {
        let mut job = serde_json::to_value(minimal()).unwrap();
        merge(&mut job["spec"], patch);
        validate(&serde_json::from_value(job).unwrap(), Policy::LOCAL).unwrap()
    }

    /// Applies a merge patch, in which null sets a field to null.
    pub fn merge(target: &mut Value, patch: &Value) {
        match (target, patch) {
            (Value::Object(target), Value::Object(patch)) => {
                for (key, value) in patch {
                    merge(target.entry(key).or_insert(Value::Null), value);
                }
            }
            (target, patch) => target.clone_from(patch),
        }
    }

    pub fn validated() -> ValidatedJob {
        validate(&minimal(), Policy::LOCAL).unwrap()
    }
}
