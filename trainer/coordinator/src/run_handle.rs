//! Shared access to the run's state machine: every change is journaled before its result is
//! visible.
//!
//! ```text
//!  server, scheduler, weight sync ─▶ change(|run| …) ─┬─▶ journal, if the record changed
//!                                                     └─▶ changes(), if the outline changed
//! ```

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::{Mutex, watch};

use crate::clock::Clock;
use crate::core::record::KEY;
use crate::core::{Now, Record, Run};
use crate::persistence::journal::shared::{SharedJournal, SharedJournalError};
use crate::persistence::journal::{Event, JournalError};

/// A shared run. Clones refer to the same run.
#[derive(Clone)]
pub struct RunHandle {
    state: Arc<Mutex<RunState>>,
    changed: watch::Sender<()>,
    journal: SharedJournal,
    clock: Clock,
}

struct RunState {
    run: Run,
    /// The record in the journal.
    journaled: Record,
}

impl RunHandle {
    /// `clock` must be the clock that produced the time given to `run`.
    pub fn new(run: Run, journal: SharedJournal, clock: Clock) -> Self {
        let journaled = run.record().clone();
        place_logs(&run);
        let state = Arc::new(Mutex::new(RunState { run, journaled }));
        Self { state, changed: watch::channel(()).0, journal, clock }
    }

    /// Applies `change`. The record is in the journal when this returns.
    pub async fn change<T>(
        &self,
        change: impl FnOnce(&mut Run, Now) -> T,
    ) -> Result<T, SharedJournalError> {
        let mut state = self.state.lock().await;
        let before = state.run.outline();
        let result = change(&mut state.run, self.clock.now());
        if *state.run.record() != state.journaled {
            let began = self.clock.now();
            let journaled = self.write(state.run.record().clone()).await?;
            log_change(&state.journaled, &journaled);
            state.journaled = journaled;
            // No report is processed during the write, which may take minutes if the bucket's
            // server is unavailable.
            state.run.extend_deadlines(self.clock.now().saturating_sub(began));
        }
        place_logs(&state.run);
        let changed = state.run.outline() != before;
        drop(state);
        if changed {
            self.changed.send_replace(());
        }
        Ok(result)
    }

    /// Reads the run.
    pub async fn read<T>(&self, read: impl FnOnce(&Run) -> T) -> T {
        read(&self.state.lock().await.run)
    }

    /// Notifies after every change of the outline.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    async fn write(&self, record: Record) -> Result<Record, SharedJournalError> {
        let json = serde_json::to_value(&record).map_err(|error| JournalError::Malformed {
            what: "state.value",
            source: error.into(),
        })?;
        let event =
            Event { at: Timestamp::now(), kind: "RunChanged".to_owned(), detail: json.clone() };
        self.journal
            .call(move |journal| {
                journal.put_state(KEY, &json)?;
                journal.put_event(&event)
            })
            .await?;
        Ok(record)
    }
}

/// Attempt and newest step of later lines of the log.
fn place_logs(run: &Run) {
    rljob_logging::set_attempt(run.record().trainer.attempt);
    rljob_logging::set_step(run.last_step());
}

/// Logs a change of what people follow; records change at every step.
fn log_change(before: &Record, after: &Record) {
    let followed = |record: &Record| {
        (record.trainer.stage.name(), record.trainer.attempt, record.trainer.restarts)
    };
    if followed(before) != followed(after) {
        let (stage, attempt, restarts) = followed(after);
        tracing::info!(stage, attempt, restarts, "run state changed");
    }
}
