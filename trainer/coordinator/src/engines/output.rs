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
use rljob_protocol::answer::{Answer, AnswerMeta, Finish, FinishKind};
use rljob_protocol::sglang::{ErrorBody, GenerateRequest};

use crate::engines::error::{EngineError, GENERATE};
use crate::engines::stream::{Events, TooLarge};

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

/// The output of a request while it streams.
#[derive(Debug)]
pub struct Output {
    events: Events,
    /// Most tokens.
    longest: usize,
    chunks: Arc<AtomicU64>,
    received: Option<Received>,
}

impl Output {
    /// No output; `chunks` counts calls of `push`.
    pub fn new(request: &GenerateRequest, chunks: Arc<AtomicU64>) -> Self {
        let longest = request.sampling_params.max_new_tokens as usize;
        let bytes = STREAM_BYTES.0.saturating_add(STREAM_BYTES.1.saturating_mul(longest));
        Self { events: Events::new(bytes), longest, chunks, received: None }
    }

    /// Appends bytes of the stream. After an error, the output is that of the events before.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        self.chunks.fetch_add(1, Ordering::Relaxed);
        let (longest, received) = (self.longest, &mut self.received);
        self.events.push(bytes, |event| {
            let answer = parse(event)?;
            if let Some(received) = received {
                return received.append(answer, longest);
            }
            let version = answer.meta_info.weight_version.clone().into_owned();
            let mut first = Received { version, ..Received::default() };
            first.append(answer, longest)?;
            *received = Some(first);
            Ok(())
        })
    }

    /// The output; `None` before the first event.
    pub fn into_received(self) -> Option<Received> {
        self.received
    }
}

impl Received {
    fn append(&mut self, answer: Answer<'_>, longest: usize) -> Result<(), EngineError> {
        let Answer { output_ids: ids, meta_info: meta } = answer;
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

fn parse(event: &[u8]) -> Result<Answer<'_>, EngineError> {
    // SGLang sends errors in streams as events with the body of a 400 response.
    serde_json::from_slice(event).map_err(|error| {
        serde_json::from_slice(event).map_or_else(|_| invalid(error.to_string()), rejected)
    })
}

fn rejected(body: ErrorBody) -> EngineError {
    let (status, message) = (StatusCode::BAD_REQUEST, body.error.message);
    EngineError::Rejected { route: GENERATE, status, message }
}

fn invalid(message: String) -> EngineError {
    EngineError::InvalidResponse { route: GENERATE, message }
}

impl From<TooLarge> for EngineError {
    fn from(error: TooLarge) -> Self {
        invalid(error.to_string())
    }
}

#[cfg(test)]
pub(crate) mod tests;
