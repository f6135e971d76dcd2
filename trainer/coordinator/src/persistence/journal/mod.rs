//! Journal of a run: one SQLite file with samples, batches, reports, state and the audit trail.
//!
//! ```text
//!  rollouts ── put_samples ─▶ samples ── fix_batch ─▶ batches (samples of a batch never change)
//!  learners ── report_step, put_checkpoint ─▶ steps, checkpoints
//!  others   ── put_event, put_evaluation, put_state ─▶ events, evaluations, state
//! ```
//!
//! Every call is one transaction and is on disk when it returns (write-ahead log with `synchronous
//! = FULL`): a batch is durable before a learner receives it, a step before it is reported. The
//! file is locked while open (`locking_mode = EXCLUSIVE`, which also avoids the shared memory that
//! network volumes lack). Each coordinator works on a separate file (see [`super::fence`]), to
//! which `journal.sqlite` is a link. To inspect the journal of an active run, copy that file and
//! its `-wal` and open the copy with `sqlite3`.
//!
//! It must not interpret metrics or read the clock: time is a parameter.

mod batches;
mod blob;
pub mod copy;
mod error;
mod history;
mod inferred;
mod migrate;
mod open;
mod parts;
mod pass_rates;
mod progress;
mod records;
mod rollback;
mod samples;
pub mod shared;

use rusqlite::Connection;

pub use error::JournalError;
pub use inferred::Inferred;
pub use records::{
    Checkpoint, DETAILS, DataPosition, Event, FixedBatch, LENGTH, LIMIT, PassRate, Pending,
    Rejections, STOP, Sample, Segment, VersionRun,
};
pub use rollback::Later;

/// An open journal; the file's only user.
#[derive(Debug)]
pub struct Journal {
    connection: Connection,
}

#[cfg(test)]
mod tests;
