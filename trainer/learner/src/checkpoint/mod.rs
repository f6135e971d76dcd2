//! Checkpoints: master weights and optimizer state of every rank and trained model, committed
//! atomically.
//!
//! ```text
//!  main thread      snapshot (a copy in host memory, by the GPU if there is one) ──▶ training
//!  writer, rank r   rank-r-of-W.safetensors ──▶ rank-r-of-W.json (sizes, SHA-256)
//!  writer, rank 0   waits for the .json of every rank ──▶ manifest.json, the commit ──▶ report
//! ```
//! Writers use no collectives: ranks synchronize through the files of the shared folder. Of several
//! replicas of the models ([`crate::mesh`]) the first is written, as if there were no other: files
//! and manifest do not depend on the sharding.
//!
//! A part of more than a GiB has several files, `rank-r-of-W-file-i-of-N.safetensors`, which
//! threads write and read.
//!
//! If the run store is a bucket, each file is written to the local disk, uploaded and removed; the
//! manifest is written when the bucket has the file of every rank with its size.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod check;
mod files;
mod load;
pub mod manifest;
mod memory;
mod shard;
mod writer;

use std::path::{Path, PathBuf};

use rljob_protocol::version::Version;

pub use files::FILE_BYTES;
pub use load::{Places, Restored, load};
pub use manifest::{ModelShape, OptimizerProgress, model_shape};
pub use memory::SnapshotMemory;
pub use shard::Snapshot;
pub use writer::{CheckpointWriter, Destination};

/// A checkpoint that cannot be written or must not be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("failed to {action} `{}`", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A file is missing, truncated or altered.
    #[error(
        "rejected the checkpoint: `{place}` {detail}; \
         remove its folder to restart from the previous one"
    )]
    Torn { place: String, detail: String },
    /// Another version, format or model.
    #[error("rejected the checkpoint `{place}`: it is {found}, expected {expected}")]
    Other { place: String, found: String, expected: String },
    /// The snapshot has no model of this role.
    #[error("the {role} model is missing from a checkpoint")]
    Role { role: &'static str },
    #[error(transparent)]
    Storage(#[from] rljob_storage::StorageError),
    #[error("failed to copy tensors of a checkpoint")]
    Tensor(#[from] tch::TchError),
    #[error("failed to copy tensors of a checkpoint from a GPU")]
    Copy(#[from] rljob_kernels::KernelError),
    /// Other ranks did not write their parts.
    #[error(
        "ranks {ranks:?} did not complete their parts of the checkpoint `{}` within {seconds} s",
        path.display()
    )]
    Peers { path: PathBuf, ranks: Vec<u32>, seconds: u64 },
    /// The attempt was superseded, or could not be confirmed.
    #[error("failed to commit checkpoint {0}")]
    Commit(Version, #[source] crate::coordinator_client::ClientError),
    /// The checkpoint is complete, but the coordinator did not receive the report.
    #[error("failed to report checkpoint {0}")]
    Report(Version, #[source] crate::coordinator_client::ClientError),
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
