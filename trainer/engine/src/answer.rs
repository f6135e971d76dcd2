//! Answers as SGLang gives them: text, tokens, log-probabilities, why it ended, and the weights'
//! version at the end.

use serde::ser::{Serialize, Serializer};
use serde_json::json;

/// A token's log-probability, its id, and its text if that was asked for. The first token of a
/// prompt has none.
pub type TokenLogprob = (Option<f64>, i64, Option<String>);

/// The answer to one request, whole or so far.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Answer {
    /// Text of the completion; empty without a tokenizer.
    pub text: String,
    /// Its tokens, the stop token included.
    pub output_ids: Vec<i64>,
    /// The rest.
    pub meta_info: Meta,
    /// Which of the requests sent together, if the answer is streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
}

/// Part of an answer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Meta {
    /// Request id.
    pub id: String,
    /// Why it ended; null while it goes on.
    pub finish_reason: Option<Finish>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The weights when the answer was made.
    pub weight_version: String,
    /// Times a pause took it back to the queue.
    pub num_retractions: u32,
    /// Log-probabilities, if they were asked for.
    #[serde(flatten)]
    pub logprobs: Option<MetaLogprobs>,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Prompt tokens found in the cache.
    pub cached_tokens: usize,
    /// Seconds from arrival to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e_latency: Option<f64>,
}

/// Log-probabilities of an answer.
#[derive(Clone, Debug, PartialEq, Default, serde::Serialize)]
pub struct MetaLogprobs {
    /// Of the prompt, from where it was asked for; the first has none.
    pub input_token_logprobs: Vec<TokenLogprob>,
    /// Of the completion.
    pub output_token_logprobs: Vec<TokenLogprob>,
    /// How many of the completion.
    pub output_token_logprobs_length: usize,
    /// The likeliest tokens of each position.
    #[serde(flatten)]
    pub top: Option<TopLogprobs>,
}

/// The likeliest tokens of each position.
#[derive(Clone, Debug, PartialEq, Default, serde::Serialize)]
pub struct TopLogprobs {
    /// Of the prompt.
    pub input_top_logprobs: Vec<Option<Vec<TokenLogprob>>>,
    /// Of the completion.
    pub output_top_logprobs: Vec<Vec<TokenLogprob>>,
}

/// Why a completion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence or stop token.
    StopToken(i64),
    /// A stop string.
    StopText(String),
    /// As long as it may be.
    Length(usize),
    /// Aborted while it ran; it keeps its tokens.
    Aborted,
    /// Aborted before it ran.
    AbortedWaiting,
}

impl Finish {
    /// `stop`, `length` or `abort`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::StopToken(_) | Self::StopText(_) => "stop",
            Self::Length(_) => "length",
            Self::Aborted | Self::AbortedWaiting => "abort",
        }
    }

    /// What matched, of a stop.
    pub fn matched(&self) -> serde_json::Value {
        match self {
            Self::StopToken(id) => json!(id),
            Self::StopText(text) => json!(text),
            Self::Length(_) | Self::Aborted | Self::AbortedWaiting => serde_json::Value::Null,
        }
    }
}

impl Serialize for Finish {
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
