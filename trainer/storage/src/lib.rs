//! Run stores: a directory shared by all processes of a run, or a prefix of an S3 bucket. All calls
//! block.
//!
//! ```text
//!  RunStore::Folder   <run directory>/checkpoints/…       synced files, renamed when complete
//!  RunStore::Bucket   s3://bucket/<prefix>/checkpoints/…  objects, which appear complete
//! ```
//!
//! Buckets cannot rename folders: a folder is complete when it contains its marker
//! (`manifest.json`, `complete.json`), which is written last and removed first. The crate does not
//! know what the folders contain.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod bucket;
pub mod coordinator_resolver;
mod credentials;
pub mod durable;
mod error;
pub mod model_folder;
mod run_store;
mod upload;

pub use bucket::Bucket;
pub use error::StorageError;
pub use run_store::{Folder, MAX_MANIFEST, RunStore};
