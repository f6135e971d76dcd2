//! Output of a request: joins the events of a stream, each of which has the tokens since the last
//! one (SGLang's `--incremental-streaming-output`).
//!
//! ```text
//!  t0 t1 ─▶ t2 ─▶ t3, stop      output: t0 t1 t2 t3, stop
//! ```
//! Each event says how many tokens there are with it, so that a lost one is an error and a repeated
//! one is left out: SGLang repeats the newest token when it aborts a request that waits again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;
use parking_lot::Mutex;
use rljob_protocol::answer::Answer;
use rljob_protocol::sglang::{ErrorBody, GenerateRequest};

use crate::engines::error::{EngineError, GENERATE};
use crate::engines::live::LivePart;
use crate::engines::received::{Received, invalid};
use crate::engines::stream::TooLarge;

/// Bytes of a stream besides its tokens, and for each token at most: an event with its metadata.
const STREAM_BYTES: (usize, usize) = (1 << 20, 8 << 10);

/// The output of a request while it streams. Clones share it.
#[derive(Clone, Debug)]
pub struct Output {
    /// Most tokens.
    longest: usize,
    chunks: Arc<AtomicU64>,
    received: Arc<Mutex<Option<Received>>>,
    /// Publishes the output while it streams.
    live: Option<LivePart>,
}

impl Output {
    /// No output; `chunks` counts calls of `push`.
    pub fn new(request: &GenerateRequest, chunks: Arc<AtomicU64>, live: Option<LivePart>) -> Self {
        let longest = request.sampling_params.max_new_tokens as usize;
        Self { longest, chunks, received: Arc::default(), live }
    }

    /// Most bytes of its events.
    pub fn max_bytes(&self) -> usize {
        STREAM_BYTES.0.saturating_add(STREAM_BYTES.1.saturating_mul(self.longest))
    }

    /// Appends an event. After an error, the output is that of the events before.
    pub fn push(&self, answer: Answer<'_>) -> Result<(), EngineError> {
        self.chunks.fetch_add(1, Ordering::Relaxed);
        let mut received = self.received.lock();
        if let Some(received) = received.as_mut() {
            received.append(answer, self.longest)?;
        } else {
            let version = answer.meta_info.weight_version.clone().into_owned();
            let mut first = Received { version, ..Received::default() };
            first.append(answer, self.longest)?;
            *received = Some(first);
        }
        if let Some((live, received)) = self.live.as_ref().zip(received.as_ref()) {
            live.publish(received);
        }
        Ok(())
    }

    /// Whether there was no event.
    pub fn is_empty(&self) -> bool {
        self.received.lock().is_none()
    }

    /// Whether the last event was received.
    pub fn is_finished(&self) -> bool {
        self.received.lock().as_ref().is_some_and(|received| received.finish.is_some())
    }

    /// Takes the output; `None` before the first event.
    pub fn take(&self) -> Option<Received> {
        self.received.lock().take()
    }
}

/// Parses an event of a stream.
pub fn parse(event: &[u8]) -> Result<Answer<'_>, EngineError> {
    // SGLang sends errors in streams as events with the body of a 400 response.
    serde_json::from_slice(event).map_err(|error| {
        serde_json::from_slice(event).map_or_else(|_| invalid(error.to_string()), rejected)
    })
}

fn rejected(body: ErrorBody) -> EngineError {
    let (status, message) = (StatusCode::BAD_REQUEST, body.error.message);
    EngineError::Rejected { route: GENERATE, status, message }
}

impl From<TooLarge> for EngineError {
    fn from(error: TooLarge) -> Self {
        invalid(error.to_string())
    }
}

#[cfg(test)]
pub(crate) mod tests;
