//! What the operator (or `rljob run`) hands to every process of a job: the spec and where things are. No secret is in it.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::RLJobSpec;

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
    /// The run directory as the processes see it.
    pub run_directory: PathBuf,
    /// The model folder as the processes see it: `spec.model.path`, or the export of another job, which may not be complete yet.
    pub model_directory: PathBuf,
    /// The spec with its defaults.
    pub spec: RLJobSpec,
}
