//! Experiment trackers: the journal's metrics and the traces of steps, copied beside the run.
//!
//! ```text
//!  journal, traces.jsonl ─▶ what comes after the tracker's position ─▶ tracker ─▶ next position
//!    ▲                                                                   │
//!    └────────────────────── again after 2 seconds ──────────────────────┘ longer after a failure
//! ```
//! The run never waits for a tracker.

pub mod failures;
pub mod metrics;
pub mod mlflow;
pub mod opentelemetry;
pub mod server;
pub mod tensorboard;

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use self::failures::Failures;
use crate::persistence::journal::shared::SharedJournalError;

/// Between two looks at the run.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest wait after failures in a row.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A failed transfer, which is repeated.
#[derive(Debug, thiserror::Error)]
pub enum TrackerError {
    #[error(transparent)]
    Server(Box<dyn Error + Send + Sync>),
    #[error("failed to write the event files of TensorBoard")]
    TensorBoard(#[from] std::io::Error),
    #[error("failed to read the traces of steps")]
    Traces(#[source] std::io::Error),
    #[error(transparent)]
    Journal(#[from] SharedJournalError),
}

/// A copy of records of the run.
pub trait Tracker: Send {
    /// Name in logs and in the status.
    const NAME: &'static str;

    /// Copies all records that the tracker lacks.
    fn copy(&mut self) -> impl Future<Output = Result<(), TrackerError>> + Send;
}

/// Brings `tracker` up to date until `stop`, and once more then. `failures` has the error while it
/// fails.
pub async fn follow<T: Tracker>(mut tracker: T, failures: Failures, stop: CancellationToken) {
    let mut wait = LOOK_EVERY;
    let mut last = false;
    while !last {
        tokio::select! {
            () = stop.cancelled() => last = true,
            () = tokio::time::sleep(wait) => {}
        }
        let failed = wait > LOOK_EVERY;
        match tracker.copy().await {
            Ok(()) if failed => {
                failures.clear(T::NAME);
                tracing::info!(tracker = T::NAME, "the tracker responds again");
                wait = LOOK_EVERY;
            }
            Ok(()) => {}
            Err(error) => {
                let error = crate::error_line(&error);
                failures.set(T::NAME, &error);
                if !failed {
                    tracing::warn!(tracker = T::NAME, error, "failed to track the run; retrying");
                }
                wait = wait.saturating_mul(2).min(MAX_WAIT);
            }
        }
    }
}
