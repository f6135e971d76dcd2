//! Initial checkpoint of a run.

use crate::union::{Union, exactly_one};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Checkpoint of the same model that a run without checkpoints starts from. Exactly one of `rljob`,
/// `path` and `s3`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct RestoreSource {
    /// Checkpoint of another RLJob in the same namespace and storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rljob: Option<JobCheckpoint>,
    /// Checkpoint folder `step-N.attempt-K` as the pods see it. `rljob run` resolves a relative
    /// path against the job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 4096),
        regex(pattern = "(^|/)step-[0-9]+\\.attempt-[0-9]+/?$")
    )]
    pub path: Option<String>,
    /// Checkpoint in a bucket of the server that `storage.s3` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Checkpoint>,
}

impl Union for RestoreSource {
    const MEMBERS: &'static [&'static str] = &["rljob", "path", "s3"];
}

impl RestoreSource {
    /// Path or URI of a checkpoint that the spec contains.
    pub fn location(&self) -> Option<&str> {
        self.path.as_deref().or_else(|| self.s3.as_ref().map(|source| source.uri.as_str()))
    }
}

/// Checkpoint of another RLJob.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobCheckpoint {
    /// Name of the RLJob.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Step of the checkpoint. Default the newest complete checkpoint. The run records its choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub step: Option<u32>,
}

/// Checkpoint in a bucket.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3Checkpoint {
    /// URI `s3://bucket/prefix/step-N.attempt-K`.
    #[schemars(
        length(min = 1, max = 4096),
        regex(pattern = "^s3://[^/]+/(.*/)?step-[0-9]+\\.attempt-[0-9]+/?$")
    )]
    pub uri: String,
}
