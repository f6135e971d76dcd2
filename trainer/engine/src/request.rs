//! Generation requests: validation before queueing, and the response channel.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod sampling;

use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

pub use self::sampling::Sampling;
use crate::generation::Generation;

/// Rejected or failed request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// HTTP 400.
    #[error("{0}")]
    Invalid(String),
    /// HTTP 503.
    #[error("The request queue is full.")]
    QueueFull,
    /// HTTP 503.
    #[error("The engine is shutting down.")]
    Draining,
    /// HTTP 500.
    #[error("{0}")]
    Internal(String),
}

/// Request for one sample, with SGLang's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Request id, used by `/abort_request`.
    pub rid: String,
    /// Prompt tokens.
    pub input_ids: Vec<i64>,
    pub sampling: Sampling,
    pub logprobs: Option<Logprobs>,
    /// Whether partial responses are sent.
    pub stream: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Logprobs {
    /// First prompt token with a log-probability; `None` for no prompt tokens.
    pub start: Option<usize>,
    /// Number of most likely tokens per position.
    pub top: usize,
    /// Whether token texts are returned.
    pub text: bool,
}

/// Limits for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of prompt and completion tokens of the model.
    pub context_length: usize,
    /// Maximum number of prompt and completion tokens that the KV cache holds for one request.
    pub capacity: usize,
    /// Exclusive upper bound of token ids.
    pub vocabulary: i64,
}

/// Maximum of [`Logprobs::top`]; SGLang has no such limit.
const TOP_LOGPROBS: usize = 128;

/// Accepted request.
#[derive(Debug)]
pub struct QueuedRequest {
    pub request: Request,
    /// Maximum number of completion tokens.
    pub max_new_tokens: usize,
    pub arrival: Instant,
    /// Channel of the final response; closed when the client has disconnected.
    pub done: oneshot::Sender<Result<Generation, GenerateError>>,
    /// Channel of partial responses; keeps only the newest.
    pub partial: Option<watch::Sender<Option<Generation>>>,
    /// Permit of the bounded queue.
    pub permit: OwnedSemaphorePermit,
}

impl Limits {
    /// Validates a request and returns its maximum number of completion tokens. Messages are
    /// SGLang's where SGLang has one.
    pub fn check(&self, request: &Request) -> Result<usize, GenerateError> {
        let prompt = request.input_ids.len();
        let requested = request.sampling.max_new_tokens;
        let message = if request.rid.is_empty() {
            "rid cannot be empty.".to_owned()
        } else if let Some(message) = self.invalid_tokens(&request.input_ids) {
            message
        } else if let Some(new) =
            requested.filter(|new| *new > self.context_length.saturating_sub(prompt) as i64)
        {
            self.too_many(prompt, new)
        } else if let Some(message) = self.exceeds_cache(prompt, requested.unwrap_or(1)) {
            message
        } else if let Some(logprobs) = request
            .logprobs
            .filter(|logprobs| logprobs.top > TOP_LOGPROBS.min(self.vocabulary as usize))
        {
            format!(
                "top_logprobs_num must be at most {}, got {}.",
                TOP_LOGPROBS.min(self.vocabulary as usize),
                logprobs.top
            )
        } else if let Some(start) =
            request.logprobs.and_then(|logprobs| logprobs.start).filter(|start| *start >= prompt)
        {
            format!(
                "logprob_start_len must be below the number of prompt tokens ({prompt}), got \
                {start}."
            )
        } else {
            let room = self.room(prompt);
            return request
                .sampling
                .check(self.vocabulary)
                .map(|()| requested.map_or(room, |new| new as usize))
                .map_err(GenerateError::Invalid);
        };
        Err(GenerateError::Invalid(message))
    }

    /// Validates a sequence to classify.
    pub fn check_tokens(&self, tokens: &[i64]) -> Result<(), GenerateError> {
        let message = self.invalid_tokens(tokens).or_else(|| self.exceeds_cache(tokens.len(), 0));
        message.map_or(Ok(()), |message| Err(GenerateError::Invalid(message)))
    }

    fn invalid_tokens(&self, tokens: &[i64]) -> Option<String> {
        let length = tokens.len();
        if length == 0 {
            return Some("input_ids cannot be empty.".to_owned());
        }
        if let Some(id) = tokens.iter().find(|id| !(0..self.vocabulary).contains(*id)) {
            return Some(format!(
                "The input_ids contain {id}, which is outside the vocabulary (0 to {}).",
                self.vocabulary.saturating_sub(1)
            ));
        }
        (length >= self.context_length).then(|| {
            format!(
                "The input ({length} tokens) is longer than the model's context length ({} \
                tokens).",
                self.context_length
            )
        })
    }

    /// Maximum number of completion tokens after a prompt.
    pub fn room(&self, prompt: usize) -> usize {
        self.context_length.min(self.capacity).saturating_sub(prompt)
    }

    /// SGLang shortens such completions silently.
    fn exceeds_cache(&self, prompt: usize, new: i64) -> Option<String> {
        let total = new.max(0).saturating_add(prompt as i64);
        (total > self.capacity as i64).then(|| {
            format!(
                "Input length ({prompt} tokens) and completion ({new} tokens) exceed the maximum \
                 allowed length of the KV cache ({} tokens). Use a shorter input or raise \
                 --max-total-tokens.",
                self.capacity
            )
        })
    }

    fn too_many(&self, prompt: usize, new: i64) -> String {
        format!(
            "Requested token count exceeds the model's maximum context length of {} tokens. You \
             requested a total of {} tokens: {prompt} tokens from the input messages and {new} \
             tokens for the completion. Please reduce the number of tokens in the input messages \
             or the completion to fit within the limit.",
            self.context_length,
            new.saturating_add(prompt as i64)
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Limits, Logprobs, Request, Sampling};

    pub(crate) fn request(input_ids: Vec<i64>, max_new_tokens: i64) -> Request {
        let sampling =
            Sampling { max_new_tokens: Some(max_new_tokens), seed: Some(1), ..Sampling::default() };
        Request {
            rid: "r".to_owned(),
            input_ids,
            sampling,
            logprobs: Some(Logprobs::default()),
            stream: false,
        }
    }

    fn error(request: &Request) -> String {
        Limits { context_length: 8, capacity: 8, vocabulary: 10 }
            .check(request)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn invalid_requests_are_rejected_with_a_reason() {
        let limits = Limits { context_length: 8, capacity: 8, vocabulary: 10 };
        assert_eq!(limits.check(&request(vec![1, 9], 6)), Ok(6));
        let open = Request { sampling: Sampling::default(), ..request(vec![1, 9], 0) };
        assert_eq!(limits.check(&open), Ok(6));
        assert_eq!(error(&request(vec![], 1)), "input_ids cannot be empty.");
        assert_eq!(
            error(&request(vec![1, 10], 1)),
            "The input_ids contain 10, which is outside the vocabulary (0 to 9)."
        );
        assert_eq!(
            error(&request(vec![-1], 1)),
            "The input_ids contain -1, which is outside the vocabulary (0 to 9)."
        );
        assert_eq!(
            error(&request(vec![1; 8], 1)),
            "The input (8 tokens) is longer than the model's context length (8 tokens)."
        );
        assert!(error(&request(vec![1; 3], 6)).starts_with(
            "Requested token count exceeds the model's maximum context length of 8 tokens."
        ));
        let small = Limits { capacity: 4, ..limits };
        assert_eq!(
            small.check(&request(vec![1; 3], 2)).unwrap_err().to_string(),
            "Input length (3 tokens) and completion (2 tokens) exceed the maximum allowed length \
             of the KV cache (4 tokens). Use a shorter input or raise --max-total-tokens."
        );
        assert_eq!(small.check(&Request { sampling: Sampling::default(), ..open }), Ok(2));
        let mut late = request(vec![1], 1);
        late.logprobs = Some(Logprobs { start: Some(1), ..Logprobs::default() });
        assert_eq!(
            error(&late),
            "logprob_start_len must be below the number of prompt tokens (1), got 1."
        );
        late.logprobs = Some(Logprobs { top: 11, ..Logprobs::default() });
        assert_eq!(error(&late), "top_logprobs_num must be at most 10, got 11.");
    }

    #[test]
    fn invalid_sampling_parameters_get_sglangs_messages() {
        let with = |change: &dyn Fn(&mut Sampling)| {
            let mut request = request(vec![1], 2);
            change(&mut request.sampling);
            error(&request)
        };
        assert_eq!(with(&|s| s.temperature = -0.5), "temperature must be non-negative, got -0.5.");
        assert_eq!(with(&|s| s.top_p = 0.0), "top_p must be in (0, 1], got 0.0.");
        assert_eq!(with(&|s| s.top_k = 0), "top_k must be -1 (disable) or at least 1, got 0.");
        assert_eq!(with(&|s| s.min_p = 1.5), "min_p must be in [0, 1], got 1.5.");
        assert_eq!(
            with(&|s| s.presence_penalty = 3.0),
            "presence_penalty must be in [-2, 2], got 3.0."
        );
        assert_eq!(
            with(&|s| s.min_new_tokens = 3),
            "min_new_tokens must be in [0, max_new_tokens(2)], got 3."
        );
        assert_eq!(
            with(&|s| s.max_new_tokens = Some(-1)),
            "max_new_tokens must be at least 0, got -1."
        );
        assert_eq!(with(&|s| s.stop = vec![String::new()]), "stop must not have an empty string.");
        assert_eq!(
            with(&|s| s.stop_token_ids = vec![10]),
            "stop_token_ids contain 10, which is outside the vocabulary (0 to 9)."
        );
    }
}
