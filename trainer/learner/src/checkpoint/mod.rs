//! Checkpoints: master weights and optimizer state of every rank, complete or not there at all.
//!
//! ```text
//!  main thread      snapshot (a copy in host memory) ──▶ goes on training
//!  writer, rank r   rank-r-of-W.safetensors ──▶ rank-r-of-W.json (size, SHA-256)
//!  writer, rank 0   waits for every rank's .json ──▶ manifest.json (last: the commit) ──▶ CheckpointReport
//! ```
//! No collective runs beside the main thread's: ranks meet through files of the folder that they
//! share.
//!
//! Where the run is kept in a bucket, each file is written to the machine's own disk first,
//! uploaded, and removed there; the manifest is written when every rank's file is in the bucket
//! with its size.

mod load;
pub mod manifest;
mod shard;
mod writer;

use std::path::{Path, PathBuf};

use rljob_protocol::version::Version;

pub use load::{Restored, load};
pub use manifest::{ModelShape, OptimizerProgress, model_shape};
pub use shard::Snapshot;
pub use writer::{CheckpointWriter, Place};

/// A checkpoint that cannot be written or must not be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file operation failed.
    #[error("failed to {action} `{}`", path.display())]
    Io {
        /// What was done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file is missing, cut off or altered.
    #[error(
        "rejected the checkpoint: `{place}` {detail}; \
         remove its folder to restart from the previous one"
    )]
    Torn {
        /// The file.
        place: String,
        /// What is wrong with it.
        detail: String,
    },
    /// It holds something else.
    #[error("rejected the checkpoint `{place}`: it is {found}, expected {expected}")]
    Other {
        /// Its folder.
        place: String,
        /// What it is.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// A checkpoint needs the model of this role.
    #[error("the {role} model is missing from a checkpoint")]
    Role { role: &'static str },
    /// Its folder, or the bucket it is in, cannot be read or written.
    #[error(transparent)]
    Storage(#[from] rljob_storage::StorageError),
    /// A tensor operation failed.
    #[error("failed to copy tensors of a checkpoint")]
    Tensor(#[from] tch::TchError),
    /// Other ranks did not write their parts.
    #[error("ranks {ranks:?} did not complete their parts of the checkpoint `{}` within {seconds} s", path.display())]
    Peers {
        /// Its folder.
        path: PathBuf,
        /// Ranks that are missing.
        ranks: Vec<u32>,
        /// How long they were waited for.
        seconds: u64,
    },
    /// The group that wrote it was replaced, or nobody can tell.
    #[error("the checkpoint {0} is not committed")]
    Commit(Version, #[source] crate::coordinator_client::ClientError),
    /// It is complete, but the coordinator could not be told.
    #[error("failed to report checkpoint {0}")]
    Report(Version, #[source] crate::coordinator_client::ClientError),
    /// The writer's thread could not be started or did not end well.
    #[error(transparent)]
    Thread(#[from] crate::background::ThreadError),
}

impl CheckpointError {
    fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}

#[cfg(test)]
mod tests;
