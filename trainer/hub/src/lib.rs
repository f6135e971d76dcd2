//! Hugging Face hub client: downloads verified snapshots of model and dataset repositories.
//!
//! ```text
//!  revision ─ resolve ─▶ commit ─ list ─▶ files ─ select ─▶ fetch ─▶ NAME/complete.json
//!                                        size, checksum        │
//!                          NAME.COMMIT.partial/FILE.part ◀─────┘ continued after a crash
//! ```
//!
//! A snapshot folder appears under its name by one rename, when every file matches its checksum.
//! The crate knows no jobs: who downloads what, and where the commit is recorded, is decided by the
//! caller (docs/decisions/0011).

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod client;
mod error;
mod fetch;
mod repository;
mod settings;
mod snapshot;

pub use client::HubClient;
pub use error::HubError;
pub use fetch::Progress;
pub use repository::{Checksum, RemoteFile, Repository, RepositoryKind, model_files};
pub use settings::{Settings, TokenSource};
pub use snapshot::{COMPLETE_FILE, Snapshot, SnapshotDownload};
