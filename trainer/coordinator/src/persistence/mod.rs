//! Durable state of a run: the journal and its copy in a bucket, fencing, checkpoints and exports.
//!
//! ```text
//!  SharedJournal ─▶ journal (SQLite) ─▶ mirror (bucket)
//!        └────────▶ fence: rejects calls of a superseded coordinator
//!  identity    owner of the run store        copies       JSONL files in the bucket
//!  data_identity    rows of the training data
//!  recorded_config  run configuration for readers of the run store
//!  restore     checkpoint of another run     checkpoints, exports    verification, retention
//!  damage      the way back from a damaged journal
//!  volume_fault     faults that end without a change of the job
//! ```

pub mod checkpoint_file;
pub mod checkpoints;
pub mod copies;
pub mod damage;
pub mod data_identity;
pub mod exports;
pub mod fence;
pub mod identity;
pub mod journal;
pub mod mirror;
pub mod recorded_config;
pub mod restore;
pub mod volume_fault;
