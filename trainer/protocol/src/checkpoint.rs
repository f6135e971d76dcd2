//! Manifest of a checkpoint, `manifest.json`. It is written last and commits the checkpoint: a
//! folder without it is ignored. Learners write and read it; the coordinator verifies it before a
//! learner group starts from the checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::version::Version;

/// File name of the manifest.
pub const MANIFEST_FILE: &str = "manifest.json";
/// File name beside the manifest, which does not list it: where the data continues after the
/// checkpoint. The coordinator writes it, for runs that restore the checkpoint.
pub const POSITION_FILE: &str = "position.json";
/// Format of checkpoints of the policy with one file per rank.
pub const FORMAT: u32 = 1;
/// Format of checkpoints that contain models in addition to the policy.
pub const FORMAT_WITH_ROLES: u32 = 2;
/// Format of checkpoints with several files per rank, of one or more models.
pub const FORMAT_WITH_FILES: u32 = 3;

/// Contents of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// [`FORMAT_WITH_FILES`] if `file_bytes` is set, else [`FORMAT_WITH_ROLES`] if `roles` is not
    /// empty, else [`FORMAT`].
    pub format: u32,
    /// Completed steps, and the attempt of the learner group.
    pub version: Version,
    /// Number of ranks that wrote the checkpoint.
    pub world_size: u32,
    /// Shape of the policy.
    pub model: ModelShape,
    /// Optimizer state of the policy, except moments.
    pub optimizer: OptimizerProgress,
    /// Other trained models, by role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, ModelPart>,
    /// State of the objective.
    #[serde(default, skip_serializing_if = "ObjectiveState::is_empty")]
    pub objective: ObjectiveState,
    /// Bytes of a file at most, unless one block has more, if ranks have several files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// Files in the order of ranks.
    pub files: Vec<FileEntry>,
}

/// What an objective changes from step to step, the same on every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectiveState {
    /// Coefficient of the KL divergence in the next step, if a controller sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_coefficient: Option<f64>,
    /// Statistics of returns, if the critic predicts normalized values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns: Option<RunningMoments>,
}

/// Moving averages over steps, which begin with 0; `weight` is that of a constant 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningMoments {
    /// Of the mean.
    pub mean: f64,
    /// Of the mean of squares.
    pub square: f64,
    /// At most 1; 0 before the first step.
    pub weight: f64,
}

impl ObjectiveState {
    /// Whether the objective has no state.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Trained model in addition to the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelPart {
    /// Shape of the model.
    pub model: ModelShape,
    /// Optimizer state, except moments.
    pub optimizer: OptimizerProgress,
}

/// Shape of a model. A checkpoint fits only models of the same shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelShape {
    /// SHA-256 of names and shapes of all parameters, in hexadecimal.
    pub sha256: String,
    /// Number of elements of each block, without padding.
    pub block_numels: Vec<i64>,
    /// SHA-256 of the base and scale of adapters, in hexadecimal, if the parameters are adapters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_sha256: Option<String>,
}

/// Counters of the optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OptimizerProgress {
    /// Number of updates, for the bias correction of AdamW.
    pub updates: u64,
    /// Number of consecutive skipped updates because of non-finite losses or gradients.
    pub skipped_in_a_row: u32,
}

/// File of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    /// Name in the folder.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}
