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
use rljob_protocol::answer::{Answer, AnswerMeta, Finish, FinishKind};
use rljob_protocol::sglang::{ErrorBody, GenerateRequest};

use crate::engines::error::{EngineError, GENERATE};
use crate::engines::live::LivePart;
use crate::engines::stream::TooLarge;

/// Bytes of a stream besides its tokens, and for each token at most: an event with its metadata.
const STREAM_BYTES: (usize, usize) = (1 << 20, 8 << 10);

/// Output so far. `C` is its number of tokens.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// `[C]` token ids.
    pub tokens: Vec<i64>,
    /// `[C]` log-probabilities.
    pub logprobs: Vec<f32>,
    /// Version of the weights, the same in all events.
    pub version: String,
    /// Absent before the last event.
    pub finish: Option<Finish>,
}

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

impl Received {
    fn append(&mut self, answer: Answer<'_>, longest: usize) -> Result<(), EngineError> {
        let Answer { output_ids: ids, meta_info: meta, .. } = answer;
        if meta.weight_version != self.version {
            return Err(EngineError::WrongWeights {
                found: meta.weight_version.into_owned(),
                expected: self.version.clone(),
            });
        }
        let new = self.new_tokens(&ids, &meta, longest)?;
        let rows = meta.output_token_logprobs;
        let is_repeated = new < ids.len();
        if rows.ids != ids && !(is_repeated && rows.ids.get(..new) == ids.get(..new)) {
            return Err(invalid(format!(
                "log-probabilities of {} tokens do not match the {} tokens",
                rows.ids.len(),
                ids.len()
            )));
        }
        self.tokens.extend(ids.into_iter().take(new));
        self.logprobs.extend(rows.logprobs.into_iter().take(new));
        self.finish = meta.finish_reason;
        Ok(())
    }

    /// How many of an event's tokens follow the ones so far.
    fn new_tokens(
        &self,
        ids: &[i64],
        meta: &AnswerMeta<'_>,
        longest: usize,
    ) -> Result<usize, EngineError> {
        let total = meta.completion_tokens;
        if total > longest {
            return Err(invalid(format!("{total} tokens, expected at most {longest}")));
        }
        let is_abort =
            meta.finish_reason.as_ref().is_some_and(|finish| finish.kind == FinishKind::Abort);
        let new = total.checked_sub(self.tokens.len());
        new.filter(|new| *new == ids.len() || is_abort && *new < ids.len()).ok_or_else(|| {
            invalid(format!(
                "an event has {} tokens, {total} with those before, which were {}; start the \
                 engine with --incremental-streaming-output",
                ids.len(),
                self.tokens.len()
            ))
        })
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

/// The error of a response that is not as SGLang's.
pub(super) fn invalid(message: String) -> EngineError {
    EngineError::InvalidResponse { route: GENERATE, message }
}

impl From<TooLarge> for EngineError {
    fn from(error: TooLarge) -> Self {
        invalid(error.to_string())
    }
}

#[cfg(test)]
pub(crate) mod tests;
