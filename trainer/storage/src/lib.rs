//! Where a run is kept: a folder that every process of the job sees, or a prefix of a bucket of an
//! S3-compatible store. Blocking calls, from any thread that may block.
//!
//! ```text
//!  RunStore::Folder   <run directory>/checkpoints/…      files; who writes them gives them their names when they are whole and synced
//!  RunStore::Bucket   s3://bucket/<prefix>/checkpoints/…  objects; each is there whole or not at all
//! ```
//!
//! No store can rename a folder, so a folder is complete when its marker is in it (`manifest.json`,
//! `complete.json`), which is written last and removed first. What is in the folders is not known
//! here.

mod bucket;
pub mod coordinator_resolver;
mod credentials;
mod error;
mod run_store;
mod upload;

pub use bucket::Bucket;
pub use error::StorageError;
pub use run_store::{Folder, RunStore};
