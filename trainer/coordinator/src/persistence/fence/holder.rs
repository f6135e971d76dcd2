//! `fence.json`: which coordinator may act on a run directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::persistence::journal::JournalError;

const FILE: &str = "fence.json";

/// Owner of a run directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Holder {
    /// UID of the job.
    pub uid: String,
    /// Fencing number of its coordinator.
    pub epoch: u64,
    /// The journal in force; none while it is being copied.
    pub journal: Option<String>,
    /// The journal that is being copied; none if there was none.
    pub from: Option<String>,
}

/// A coordinator that may not act, or cannot tell.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// Another one may.
    #[error(
        "this coordinator (epoch {own}) was replaced by that of epoch {epoch} of the job with \
            uid {uid}"
    )]
    Replaced {
        /// Its own number.
        own: u64,
        /// The other's number.
        epoch: u64,
        /// The other's job.
        uid: String,
    },
    /// The file cannot be read or written.
    #[error("failed to {action} {}", path.display())]
    File {
        /// Verb of the operation.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        source: std::io::Error,
    },
    /// A JSONL file of the coordinator before cannot be taken over.
    #[error("failed to copy {}", path.display())]
    Copy { path: PathBuf, source: std::io::Error },
    /// The journal of the coordinator before cannot be taken over.
    #[error("failed to take over the run's journal")]
    Journal(#[from] JournalError),
}

impl Holder {
    /// The error of this coordinator after another one claimed the directory.
    pub fn replaced(&self, by: &Self) -> FenceError {
        FenceError::Replaced { own: self.epoch, epoch: by.epoch, uid: by.uid.clone() }
    }
}

/// Error of an action on `fence.json`.
pub fn file(action: &'static str, directory: &Path) -> impl FnOnce(std::io::Error) -> FenceError {
    let path = directory.join(FILE);
    move |source| FenceError::File { action, path, source }
}

/// The holder of a directory, if it has one.
pub fn read(directory: &Path) -> Result<Option<Holder>, FenceError> {
    match std::fs::read(directory.join(FILE)) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| file("understand", directory)(error.into())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file("read", directory)(error)),
    }
}

/// Writes the holder, whole or not at all, and durable.
pub fn write(directory: &Path, holder: &Holder) -> Result<(), FenceError> {
    let written = directory.join(format!("{FILE}.{}", holder.epoch));
    let done = serde_json::to_vec(holder).map_err(Into::into).and_then(|json| {
        std::fs::write(&written, json)?;
        std::fs::File::open(&written)?.sync_all()?;
        std::fs::rename(&written, directory.join(FILE))?;
        std::fs::File::open(directory)?.sync_all()
    });
    done.map_err(file("write", directory))
}
