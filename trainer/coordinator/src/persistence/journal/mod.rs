//! The journal: what a coordinator must not lose, in one SQLite file of the run directory. Also the
//! audit trail that people query.
//!
//! ```text
//!  rollouts ── put_samples ─▶ samples ── fix_batch ─▶ batches      (by loader position; a fixed step's samples never change)
//!  learners ── report_step, put_checkpoint ─▶ steps, checkpoints
//!  the rest ── put_event, put_evaluation, put_state ─▶ events, evaluations, state
//! ```
//!
//! Every call is one transaction and is on the disk when it returns (write-ahead log with
//! `synchronous = FULL`), so a batch is durable before a learner sees it and a step before it is
//! told to anyone. One process at a time: the file is locked for as long as it is open
//! (`locking_mode = EXCLUSIVE`, which also spares the shared memory that network volumes lack), and
//! each coordinator works on a file of its own (see `fence`), to which `journal.sqlite` is a link.
//! To look into the journal of a run that goes on, copy that file and its `-wal` and open the copy
//! with `sqlite3`.
//!
//! It must not know what the numbers mean, nor the time: that is a parameter.

mod batches;
mod blob;
pub mod copy;
mod error;
mod open;
mod parts;
mod progress;
mod records;
mod samples;
pub mod shared;

use rusqlite::Connection;

pub use error::JournalError;
pub use records::{Checkpoint, Event, FixedBatch, Pending, Sample, VersionRun};

/// An open journal; the file's only user.
#[derive(Debug)]
pub struct Journal {
    connection: Connection,
}

#[cfg(test)]
mod tests;
