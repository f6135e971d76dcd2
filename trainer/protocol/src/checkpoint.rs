//! What a checkpoint's folder holds: `manifest.json`, written last. Its presence is the commit; a
//! folder without it is no checkpoint. Learners write and read it, and the coordinator checks it
//! before it lets a group start from the checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::version::Version;

/// Name of the manifest in a checkpoint's folder.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The layout of checkpoints that this program writes and reads.
pub const FORMAT: u32 = 1;
/// The format of checkpoints with models beside the policy.
pub const FORMAT_WITH_ROLES: u32 = 2;

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// [`FORMAT`], or [`FORMAT_WITH_ROLES`] if `roles` is not empty.
    pub format: u32,
    /// Steps done and the incarnation that did them.
    pub version: Version,
    /// Ranks that wrote it, one file each.
    pub world_size: u32,
    /// Shape of the policy.
    pub model: ModelShape,
    /// State of the policy's optimizer beside its moments.
    pub optimizer: OptimizerProgress,
    /// Trained models beside the policy, by role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, ModelPart>,
    /// The files, in order of rank.
    pub files: Vec<FileEntry>,
}

/// A trained model beside the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelPart {
    /// Its shape.
    pub model: ModelShape,
    /// State of its optimizer beside its moments.
    pub optimizer: OptimizerProgress,
}

/// Identifies a model's parameters: another shape, another model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelShape {
    /// SHA-256 of the names and shapes of every parameter, in hexadecimal.
    pub sha256: String,
    /// Elements of each block, without padding.
    pub block_numels: Vec<i64>,
}

/// What the optimizer counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OptimizerProgress {
    /// Updates made, for AdamW's bias correction.
    pub updates: u64,
    /// Updates skipped in a row, up to now, because loss or gradient was not finite.
    pub skipped_in_a_row: u32,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}
