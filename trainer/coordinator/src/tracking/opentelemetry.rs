//! OpenTelemetry: each completed step as a trace of an OTLP receiver.
//!
//! ```text
//!  traces.jsonl ─▶ next 16 steps after the newest one sent ─▶ a request each
//!    ▲                                                             │
//!    └───────────────── journal: newest step sent ◀────────────────┘
//! ```
//! The file is the queue: it outlives a coordinator, and starts over beyond 64 MiB. Steps are sent
//! again if the coordinator ends before it has written the position; their ids are the same then.

mod receiver;
mod spans;

use std::collections::VecDeque;
use std::path::PathBuf;

use rljob_crds::RunConfig;
use rljob_crds::tracking::OpenTelemetrySpec;
use rljob_dashboard::records::Tail;
use rljob_protocol::trace::StepTrace;
use serde_json::{Value, json};

use super::{Tracker, TrackerError};
use crate::persistence::journal::shared::SharedJournal;
pub use receiver::{Headers, ReceiverError};
use receiver::{Outcome, Receiver};
use spans::Source;

/// State of the journal with the newest step whose trace was sent.
pub const KEY: &str = "openTelemetry";
/// Most steps that are read at a time, and sent before the position is written.
const MAX_STEPS: usize = 16;

/// The position after a rollback to `step`.
pub fn rolled_back(position: Option<&Value>, step: u32) -> Value {
    let position = position.and_then(Value::as_u64);
    position.map_or(Value::Null, |position| json!(position.min(step.into())))
}

/// Copy of `traces.jsonl` to a receiver.
pub struct OpenTelemetry {
    receiver: Receiver,
    source: Source,
    journal: SharedJournal,
    file: Tail,
    /// Steps that were read and not sent yet.
    pending: VecDeque<StepTrace>,
    /// Newest step that was sent, once it has been read from the journal; 0 before the first.
    position: Option<u32>,
}

impl OpenTelemetry {
    /// A copy that connects at its first look. `traces` is the path of `traces.jsonl`.
    ///
    /// # Errors
    /// The endpoint cannot be the base of a URL, or the TLS library cannot start.
    pub fn new(
        spec: &OpenTelemetrySpec,
        config: &RunConfig,
        headers: Headers,
        traces: PathBuf,
        journal: SharedJournal,
    ) -> Result<Self, ReceiverError> {
        Ok(Self {
            receiver: Receiver::new(&spec.endpoint, headers)?,
            source: Source::of(config),
            journal,
            file: Tail::new(traces),
            pending: VecDeque::new(),
            position: None,
        })
    }

    async fn position(&mut self) -> Result<u32, TrackerError> {
        if let Some(position) = self.position {
            return Ok(position);
        }
        let state = self.journal.call(|journal| journal.get_state(KEY)).await?;
        let position = state.as_ref().and_then(Value::as_u64);
        let position = position.and_then(|step| u32::try_from(step).ok()).unwrap_or_default();
        Ok(*self.position.insert(position))
    }

    /// Reads the next steps of the file after `position`. None are pending then if it has no more.
    async fn read(&mut self, position: u32) -> Result<(), TrackerError> {
        while self.pending.is_empty() {
            let mut file = self.file.clone();
            let read = move || file.read_some(MAX_STEPS).map(|traces| (file, traces));
            let read = tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other);
            let (file, traces) = read.flatten().map_err(TrackerError::Traces)?;
            self.file = file;
            if traces.is_empty() {
                break;
            }
            let is_new = |trace: &StepTrace| trace.step > position;
            self.pending.extend(traces.into_iter().filter(is_new));
        }
        Ok(())
    }

    /// Sends the pending steps in their order until one fails.
    async fn send(&mut self) -> Result<(), TrackerError> {
        while let Some(trace) = self.pending.front() {
            let step = trace.step;
            let outcome = self.receiver.export(&self.source.request(trace)).await?;
            if let Outcome::Rejected(reason) = outcome {
                tracing::warn!(step, reason, "the OpenTelemetry receiver rejected a trace");
            }
            self.position = Some(step);
            self.pending.pop_front();
        }
        Ok(())
    }
}

impl Tracker for OpenTelemetry {
    const NAME: &'static str = "OpenTelemetry";

    async fn copy(&mut self) -> Result<(), TrackerError> {
        loop {
            let before = self.position().await?;
            self.read(before).await?;
            if self.pending.is_empty() {
                return Ok(());
            }
            let sent = self.send().await;
            if let Some(position) = self.position.filter(|position| *position > before) {
                let state = json!(position);
                self.journal.call(move |journal| journal.put_state(KEY, &state)).await?;
            }
            sent?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_moves_the_position_back_to_its_step_only() {
        assert_eq!(rolled_back(None, 4), Value::Null);
        assert_eq!(rolled_back(Some(&json!(3)), 4), json!(3));
        assert_eq!(rolled_back(Some(&json!(9)), 4), json!(4));
    }
}
