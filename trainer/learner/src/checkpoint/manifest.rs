//! `manifest.json` and the receipts of ranks: file names, checksums, atomic writes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rljob_crds::algorithm::ModelRole;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::CheckpointError;
use crate::model::ModelLayout;

pub use rljob_protocol::checkpoint::{
    FORMAT, FORMAT_WITH_FILES, FORMAT_WITH_ROLES, FileEntry, MANIFEST_FILE, Manifest, ModelPart,
    ModelShape, OptimizerProgress,
};

/// Shape of a model in checkpoints: hash and block sizes of its layout.
pub fn model_shape(layout: &ModelLayout) -> ModelShape {
    let mut hash = Sha256::new();
    for (index, block) in layout.blocks().iter().enumerate() {
        for spec in block.tensors() {
            hash.update(format!("{index} {} {:?}\n", spec.name, spec.shape));
        }
    }
    ModelShape {
        sha256: format!("{:x}", hash.finalize()),
        block_numels: layout.block_numels(),
        base_sha256: None,
    }
}

/// Name of a role in manifests and tensor names.
pub fn role_name(role: ModelRole) -> &'static str {
    match role {
        ModelRole::Policy => "policy",
        ModelRole::Reference => "reference",
        ModelRole::Critic => "critic",
    }
}

/// Size and checksum of the file `name` in `folder`.
///
/// # Errors
/// The file cannot be read.
pub fn measure(folder: &Path, name: &str) -> Result<FileEntry, CheckpointError> {
    let path = folder.join(name);
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
    let mut file = File::open(&path).map_err(|error| CheckpointError::io("open", &path, error))?;
    loop {
        let read =
            file.read(&mut buffer).map_err(|error| CheckpointError::io("read", &path, error))?;
        if read == 0 {
            return Ok(FileEntry {
                name: name.to_owned(),
                size,
                sha256: format!("{:x}", hash.finalize()),
            });
        }
        size = size.saturating_add(read as u64);
        hash.update(buffer.get(..read).unwrap_or_default());
    }
}

/// Files of a rank's complete part.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Receipt {
    One(FileEntry),
    Several(Vec<FileEntry>),
}

impl Receipt {
    /// The receipt of `files`.
    pub fn new(files: Vec<FileEntry>) -> Self {
        match <[FileEntry; 1]>::try_from(files) {
            Ok([file]) => Self::One(file),
            Err(files) => Self::Several(files),
        }
    }

    /// The files, in order.
    pub fn into_files(self) -> Vec<FileEntry> {
        match self {
            Self::One(file) => vec![file],
            Self::Several(files) => files,
        }
    }
}

/// File name of the receipt for a rank's complete part.
pub fn receipt_file(rank: u32, world_size: u32) -> String {
    format!("rank-{rank}-of-{world_size}.json")
}

/// Reads a JSON file.
///
/// # Errors
/// The file cannot be read, or is not of this type.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let bytes = fs::read(path).map_err(|error| CheckpointError::io("read", path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Torn {
        place: path.display().to_string(),
        detail: format!("is not a receipt: {error}"),
    })
}

/// Writes a JSON file atomically and durably.
///
/// # Errors
/// The file cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), CheckpointError> {
    let json = serde_json::to_vec_pretty(value)
        .map_err(|error| CheckpointError::io("encode", path, error.into()))?;
    let temporary = temporary(path);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(&json)?;
        file.sync_all()
    };
    write().map_err(|error| CheckpointError::io("write", &temporary, error))?;
    commit(&temporary, path)
}

/// Temporary name of a file that is being written.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

/// Renames a complete, synced file or folder durably.
///
/// # Errors
/// The rename or the sync of the folder fails.
pub fn commit(temporary: &Path, path: &Path) -> Result<(), CheckpointError> {
    let sync_folder = || path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all());
    fs::rename(temporary, path)
        .and_then(|()| sync_folder())
        .map_err(|error| CheckpointError::io("rename", path, error))
}
