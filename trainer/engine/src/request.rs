//! A request on its way through the engine: what is refused before it is queued, and how its answer gets back.

use std::time::Instant;

use rljob_protocol::sglang::{GenerateRequest, GenerateResponse};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// The request cannot be served as it is: HTTP 400.
    #[error("{0}")]
    Invalid(String),
    /// Too many requests wait: HTTP 503.
    #[error("The request queue is full.")]
    QueueFull,
    /// The engine is shutting down: HTTP 503.
    #[error("The engine is shutting down.")]
    Draining,
    /// The model or libtorch failed: HTTP 500.
    #[error("{0}")]
    Internal(String),
}

/// What a request is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Prompt and completion together stay within it, in tokens.
    pub context_length: usize,
    /// Token ids are below it.
    pub vocabulary: i64,
}

/// A request that was accepted.
#[derive(Debug)]
pub struct Job {
    /// The request.
    pub request: GenerateRequest,
    /// When it came.
    pub arrival: Instant,
    /// Receives the one answer. Closed when the client is gone.
    pub done: oneshot::Sender<Result<GenerateResponse, GenerateError>>,
    /// Receives the answer so far, if the request streams; only the newest is kept.
    pub partial: Option<watch::Sender<Option<GenerateResponse>>>,
    /// Its place in the bounded queue.
    pub place: OwnedSemaphorePermit,
}

impl Limits {
    /// Checks a request; the messages are SGLang's.
    pub fn check(&self, request: &GenerateRequest) -> Result<(), GenerateError> {
        let (prompt, new) = (request.input_ids.len(), request.sampling_params.max_new_tokens as usize);
        let message = if request.rid.is_empty() {
            "rid cannot be empty.".to_owned()
        } else if prompt == 0 {
            "input_ids cannot be empty.".to_owned()
        } else if let Some(id) = request.input_ids.iter().find(|id| !(0..self.vocabulary).contains(*id)) {
            format!("The input_ids contain {id}, which is outside the vocabulary (0 to {}).", self.vocabulary - 1)
        } else if prompt >= self.context_length {
            format!("The input ({prompt} tokens) is longer than the model's context length ({} tokens).", self.context_length)
        } else if prompt + new > self.context_length {
            self.too_many(prompt, new)
        } else {
            return check_sampling(request);
        };
        Err(GenerateError::Invalid(message))
    }

    fn too_many(&self, prompt: usize, new: usize) -> String {
        format!(
            "Requested token count exceeds the model's maximum context length of {} tokens. You requested a total of {} tokens: {prompt} tokens from the \
             input messages and {new} tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within \
             the limit.",
            self.context_length,
            prompt + new
        )
    }
}

fn check_sampling(request: &GenerateRequest) -> Result<(), GenerateError> {
    let sampling = &request.sampling_params;
    let message = if sampling.temperature < 0.0 || !sampling.temperature.is_finite() {
        format!("temperature must be non-negative, got {}.", sampling.temperature)
    } else if (sampling.top_p - 1.0).abs() > 0.0 {
        format!("top_p must be 1 (this engine samples the whole distribution), got {}.", sampling.top_p)
    } else if sampling.top_k != -1 {
        format!("top_k must be -1 (this engine samples the whole vocabulary), got {}.", sampling.top_k)
    } else {
        return Ok(());
    };
    Err(GenerateError::Invalid(message))
}

#[cfg(test)]
pub(crate) mod tests {
    use rljob_protocol::sglang::{GenerateRequest, SamplingParams};

    use super::Limits;

    pub(crate) fn request(input_ids: Vec<i64>, max_new_tokens: u32) -> GenerateRequest {
        let sampling_params = SamplingParams {
            max_new_tokens,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            stop_token_ids: vec![],
            ignore_eos: false,
            skip_special_tokens: false,
            sampling_seed: Some(1),
        };
        GenerateRequest { rid: "r".to_owned(), input_ids, sampling_params, return_logprob: true, stream: false }
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_its_reason() {
        let limits = Limits { context_length: 8, vocabulary: 10 };
        let refused = |request: &GenerateRequest| limits.check(request).unwrap_err().to_string();
        assert_eq!(limits.check(&request(vec![1, 9], 6)), Ok(()));
        assert_eq!(refused(&request(vec![], 1)), "input_ids cannot be empty.");
        assert_eq!(refused(&request(vec![1, 10], 1)), "The input_ids contain 10, which is outside the vocabulary (0 to 9).");
        assert_eq!(refused(&request(vec![-1], 1)), "The input_ids contain -1, which is outside the vocabulary (0 to 9).");
        assert_eq!(refused(&request(vec![1; 8], 1)), "The input (8 tokens) is longer than the model's context length (8 tokens).");
        assert!(refused(&request(vec![1; 3], 6)).starts_with("Requested token count exceeds the model's maximum context length of 8 tokens."));
        let mut hot = request(vec![1], 1);
        hot.sampling_params.temperature = -0.5;
        assert_eq!(refused(&hot), "temperature must be non-negative, got -0.5.");
        hot.sampling_params.temperature = 1.0;
        hot.sampling_params.top_k = 5;
        assert_eq!(refused(&hot), "top_k must be -1 (this engine samples the whole vocabulary), got 5.");
    }
}
