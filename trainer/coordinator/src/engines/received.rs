//! Output of a request that is received: tokens with log-probabilities, and how they end.

use rljob_protocol::answer::{Answer, AnswerMeta, Finish, FinishKind};

use crate::engines::error::{EngineError, GENERATE};

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

impl Received {
    /// Appends the tokens of an event; at most `longest` in all.
    pub fn append(&mut self, answer: Answer<'_>, longest: usize) -> Result<(), EngineError> {
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

/// The error of a response that is not as SGLang's.
pub(super) fn invalid(message: String) -> EngineError {
    EngineError::InvalidResponse { route: GENERATE, message }
}
