//! Response types of `/generate`, in SGLang's format.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use serde::ser::{Serialize, Serializer};
use serde_json::json;

/// Log-probability, token id and, on request, text. The first prompt token has no log-probability.
pub type TokenLogprob = (Option<f64>, i64, Option<String>);

/// Final or partial response to one request.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Generation {
    /// Empty without a tokenizer.
    pub text: String,
    /// Includes the stop token.
    pub output_ids: Vec<i64>,
    pub meta_info: GenerationMeta,
    /// Index in a batch request; only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct GenerationMeta {
    pub id: String,
    /// Null in partial responses.
    pub finish_reason: Option<FinishReason>,
    pub prompt_tokens: usize,
    /// Version at the time of the response.
    pub weight_version: String,
    /// Number of pauses that moved the request back to the queue.
    pub num_retractions: u32,
    #[serde(flatten)]
    pub logprobs: Option<GenerationLogprobs>,
    pub completion_tokens: usize,
    /// Prompt tokens whose prefill was cached.
    pub cached_tokens: usize,
    /// Seconds from arrival to completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e_latency: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Default, serde::Serialize)]
pub struct GenerationLogprobs {
    /// Prompt tokens from `logprob_start_len` on.
    pub input_token_logprobs: Vec<TokenLogprob>,
    pub output_token_logprobs: Vec<TokenLogprob>,
    pub output_token_logprobs_length: usize,
    #[serde(flatten)]
    pub top: Option<TopLogprobs>,
}

#[derive(Clone, Debug, PartialEq, Default, serde::Serialize)]
pub struct TopLogprobs {
    pub input_top_logprobs: Vec<Option<Vec<TokenLogprob>>>,
    pub output_top_logprobs: Vec<Vec<TokenLogprob>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// End-of-sequence or stop token.
    StopToken(i64),
    StopText(String),
    /// Length limit, in tokens.
    Length(usize),
    /// Aborted while running; keeps the tokens generated so far.
    Aborted,
    AbortedWaiting,
}

impl FinishReason {
    /// `stop`, `length` or `abort`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::StopToken(_) | Self::StopText(_) => "stop",
            Self::Length(_) => "length",
            Self::Aborted | Self::AbortedWaiting => "abort",
        }
    }

    /// The matched token or string of a stop.
    pub fn matched(&self) -> serde_json::Value {
        match self {
            Self::StopToken(id) => json!(id),
            Self::StopText(text) => json!(text),
            Self::Length(_) | Self::Aborted | Self::AbortedWaiting => serde_json::Value::Null,
        }
    }
}

impl Serialize for FinishReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = self.kind();
        let value = match self {
            Self::StopToken(_) | Self::StopText(_) => {
                json!({"type": kind, "matched": self.matched()})
            }
            Self::Length(length) => json!({"type": kind, "length": length}),
            Self::Aborted => {
                json!({"type": kind, "message": "Aborted", "status_code": null, "err_type": null})
            }
            Self::AbortedWaiting => json!({"type": kind, "message": "Abort in waiting queue"}),
        };
        value.serialize(serializer)
    }
}
