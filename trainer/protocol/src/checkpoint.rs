//! What a checkpoint's folder holds: `manifest.json`, written last. Its presence is the commit; a
//! folder without it is no checkpoint. Learners write and read it, and the coordinator checks it
//! before it lets a group start from the checkpoint.

use serde::{Deserialize, Serialize};

use crate::version::Version;

/// Name of the manifest in a checkpoint's folder.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The layout of checkpoints that this program writes and reads.
pub const FORMAT: u32 = 1;

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Steps done and the incarnation that did them.
    pub version: Version,
    /// Ranks that wrote it, one file each.
    pub world_size: u32,
    /// Which model it is.
    pub model: ModelShape,
    /// State of the optimizer beside its moments.
    pub optimizer: OptimizerProgress,
    /// The files, in order of rank.
    pub files: Vec<FileEntry>,
}

/// Identifies a model's parameters: another shape, another model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelShape {
    /// SHA-256 of the names and shapes of every parameter, in hexadecimal.
    pub sha256: String,
    /// Elements of each block, without padding.
    pub block_numels: Vec<i64>,
}

/// What the optimizer counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OptimizerProgress {
    /// Updates made, for AdamW's bias correction.
    pub updates: u64,
    /// Updates skipped in a row, up to now, because loss or gradient was not finite.
    pub skipped_in_a_row: u32,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}
