//! What the operator (or `rljob run`) hands to every process of a job: the spec and where things
//! are. No secret is in it.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::RLJobSpec;
use crate::data::S3Source;

/// The run configuration, `run.json`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunConfig {
    /// Namespace of the RLJob; `default` in local runs.
    pub namespace: String,
    /// Name of the RLJob.
    pub name: String,
    /// UID of the RLJob.
    pub uid: String,
    /// The run directory as the processes see it; where the run is kept in a bucket, scratch of the
    /// process's machine.
    pub run_directory: PathBuf,
    /// The bucket in which the run is kept; none where the run directory is its run store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<BucketConfig>,
    /// The model folder as the processes see it: `spec.model.path`, or the export of another job,
    /// which may not be complete yet.
    pub model_directory: PathBuf,
    /// The spec with its defaults.
    pub spec: RLJobSpec,
}

impl RunConfig {
    /// Where checkpoints and exports are, as messages between processes name it: the run directory,
    /// or `s3://bucket/prefix`.
    pub fn run_store(&self) -> PathBuf {
        self.bucket.as_ref().map_or_else(
            || self.run_directory.clone(),
            |bucket| format!("s3://{}/{}", bucket.bucket, bucket.prefix).into(),
        )
    }
}

/// A prefix of a bucket of an S3-compatible store, and how it is reached.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BucketConfig {
    /// The bucket.
    pub bucket: String,
    /// What the name of every object of the run starts with, without a slash at its end.
    pub prefix: String,
    /// URL of the store; none is AWS's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region that requests are signed for.
    pub region: String,
    /// Folder with a file for each key; none takes what the process's environment gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
}

impl BucketConfig {
    /// The part of a bucket that a job has.
    pub fn of(
        source: &S3Source,
        namespace: &str,
        name: &str,
        credentials: Option<PathBuf>,
    ) -> Self {
        let prefix = source.prefix.as_ref().map_or_else(String::new, |prefix| format!("{prefix}/"));
        Self {
            bucket: source.bucket.clone(),
            prefix: format!("{prefix}{namespace}/{name}"),
            endpoint: source.endpoint.clone(),
            region: source.region.clone(),
            credentials,
        }
    }
}
