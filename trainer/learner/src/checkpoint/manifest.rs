//! `manifest.json`: what a checkpoint holds. Its presence is the commit; a folder without it is not a checkpoint.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rljob_protocol::version::Version;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::CheckpointError;

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

impl FileEntry {
    /// Measures the file `name` in `folder`.
    pub fn of(folder: &Path, name: &str) -> Result<Self, CheckpointError> {
        let path = folder.join(name);
        let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
        let mut file = File::open(&path).map_err(|error| CheckpointError::io("open", &path, error))?;
        loop {
            let read = file.read(&mut buffer).map_err(|error| CheckpointError::io("read", &path, error))?;
            if read == 0 {
                return Ok(Self { name: name.to_owned(), size, sha256: hex(&hash.finalize()) });
            }
            size += read as u64;
            hash.update(&buffer[..read]);
        }
    }
}

/// Name of the file with rank `rank`'s part.
pub fn shard_file(rank: u32, world_size: u32) -> String {
    format!("rank-{rank}-of-{world_size}.safetensors")
}

/// Name of the file that says that rank `rank`'s part is complete.
pub fn receipt_file(rank: u32, world_size: u32) -> String {
    format!("rank-{rank}-of-{world_size}.json")
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads a JSON file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let bytes = fs::read(path).map_err(|error| CheckpointError::io("read", path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Torn { path: path.to_owned(), detail: format!("is not understood: {error}") })
}

/// Writes a JSON file that is there whole or not at all, also after a power cut.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), CheckpointError> {
    let json = serde_json::to_vec_pretty(value).map_err(|error| CheckpointError::io("encode", path, error.into()))?;
    let temporary = temporary(path);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(&json)?;
        file.sync_all()
    };
    write().map_err(|error| CheckpointError::io("write", &temporary, error))?;
    commit(&temporary, path)
}

/// The name under which a file is written until it is whole.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

/// Gives a whole, synced file or folder its name, and makes the name last.
pub fn commit(temporary: &Path, path: &Path) -> Result<(), CheckpointError> {
    let sync_folder = || path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all());
    fs::rename(temporary, path).and_then(|()| sync_folder()).map_err(|error| CheckpointError::io("rename", path, error))
}
