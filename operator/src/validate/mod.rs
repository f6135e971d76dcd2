//! RLJob → [`ValidatedJob`], or every problem with its path. Pure.
//!
//! [`document`] reads YAML or JSON text: several objects a file, and for every problem the line it
//! stands on. [`schema`] holds the types, ranges and names of the CRD's own schema against a value,
//! [`rules`] what goes across fields: the same rules that the API server checks by CEL, and those
//! that CEL cannot see. So `rljob validate` says without a cluster what a cluster would say, all of
//! it at once.

use std::fmt;
use std::ops::{Deref, DerefMut};

use kube::ResourceExt;
use rljob_crds::{RLJob, RLJobSpec};

pub mod document;

mod locate;
mod release_only;
mod rules;
mod schema;

pub use document::parse_jobs;
pub use release_only::ReleaseOnly;

/// Identity and spec of an RLJob, as read. A spec that was checked is a [`ValidatedJob`].
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Namespace of the RLJob.
    pub namespace: String,
    /// Name of the RLJob.
    pub name: String,
    /// UID of the RLJob; empty where no API server gave one.
    pub uid: String,
    /// Generation of the spec; 0 where no API server gave one.
    pub generation: i64,
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
            spec: object.spec.clone(),
        }
    }
}

/// A job that can run. Children are rendered from this type only, and no later step checks the
/// spec again.
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

/// One thing that is wrong with a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The field, for example `spec.rollout.batchSize`; empty for the whole document.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
    /// The line in the file, from 1, where a file was read.
    pub line: Option<usize>,
}

impl Problem {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), line: None }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// A job that cannot run, with every reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct InvalidSpec {
    /// Every problem, in the order of the spec's fields.
    pub problems: Vec<Problem>,
}

/// Checks a job and takes what the later steps need. The job's namespace is `default` where it
/// names none.
///
/// # Errors
/// [`InvalidSpec`] with every problem across fields. (Types and ranges were checked where the job
/// was read: by the API server or by [`parse_jobs`].)
pub fn validate(job: &RLJob) -> Result<ValidatedJob, InvalidSpec> {
    let problems = rules::problems(job);
    if !problems.is_empty() {
        return Err(InvalidSpec { problems });
    }
    Ok(ValidatedJob(job.into()))
}

/// A small valid GRPO job for tests, read through the real parser. Names differ on purpose from all
/// defaults, so that swapped arguments fail.
#[cfg(test)]
pub(crate) mod test_support {
    use super::{ValidatedJob, parse_jobs, validate};
    use rljob_crds::RLJob;

    pub const MINIMAL: &str = "
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: sums, namespace: lab, uid: 11111111-2222-3333-4444-555555555555, generation: 4}
spec:
  model: {path: /models/tiny}
  volumes: [{name: models, mountPath: /models, persistentVolumeClaim: {claimName: weights}}]
  storage: {persistentVolumeClaim: {claimName: runs, subPath: team-a}}
  dataset: {train: {path: /models/train.jsonl, prompt: '{{question}}', answer: answer}}
  reward: {math: {}}
  algorithm: {grpo: {}}
  training: {steps: 10}
  inference: {replicas: 2}
  trainer: {processesPerReplica: 2}
";

    pub fn minimal() -> RLJob {
        parse_jobs(MINIMAL).unwrap().remove(0)
    }

    pub fn validated() -> ValidatedJob {
        validate(&minimal()).unwrap()
    }
}
