//! Completions of a request, whole or while they are sampled. Pure.

use serde_json::{Value, json};

use crate::text::ToolCall;

/// The completions of a request; without any before they are sampled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completed {
    pub id: String,
    pub prompt_tokens: usize,
    /// Tokens before the completions, if the request asks for ids.
    pub prompt_ids: Option<Vec<i64>>,
    pub choices: Vec<Choice>,
}

/// A completion, or what is certain of one that is sampled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Without special tokens, the stop string and calls.
    pub text: String,
    pub tool_calls: Vec<ToolCall>,
    /// `stop`, `length` or `tool_calls`; `None` while the completion is sampled.
    pub finish_reason: Option<&'static str>,
    /// Number of tokens.
    pub tokens: usize,
    /// Text and log-probability of each token, if the request asks for them.
    pub logprobs: Option<Vec<(String, f32)>>,
    /// Token ids, if the request asks for them.
    pub token_ids: Option<Vec<i64>>,
}

impl Choice {
    /// Whether the completion begins with what was certain of it.
    fn begins_with(&self, part: &Self) -> bool {
        fn begins<T: PartialEq>(whole: Option<&[T]>, part: Option<&[T]>) -> bool {
            whole.unwrap_or_default().starts_with(part.unwrap_or_default())
        }
        self.text.starts_with(&part.text)
            && begins(self.logprobs.as_deref(), part.logprobs.as_deref())
            && begins(self.token_ids.as_deref(), part.token_ids.as_deref())
    }
}

impl Completed {
    /// Whether the completions begin with what was certain of them.
    pub fn begins_with(&self, partial: &Self) -> bool {
        self.choices.iter().zip(&partial.choices).all(|(whole, part)| whole.begins_with(part))
    }

    /// Whether no completion is sampled any more.
    pub fn is_whole(&self) -> bool {
        !self.choices.is_empty() && self.choices.iter().all(|choice| choice.finish_reason.is_some())
    }

    /// The object `kind` with these choices; `created` in seconds.
    pub fn object(
        &self,
        kind: &str,
        model: &str,
        created: u64,
        choices: &[Value],
        usage: &Value,
    ) -> Value {
        json!({
            "id": self.id, "object": kind, "created": created, "model": model,
            "choices": choices, "usage": usage,
        })
    }

    /// Numbers of tokens.
    pub fn usage(&self) -> Value {
        let completion = self.completion_tokens();
        json!({
            "prompt_tokens": self.prompt_tokens, "completion_tokens": completion,
            "total_tokens": self.prompt_tokens.saturating_add(completion),
        })
    }

    /// Tokens of all choices.
    pub fn completion_tokens(&self) -> usize {
        self.choices.iter().map(|choice| choice.tokens).sum()
    }
}

/// Tokens with their log-probabilities.
pub fn token_logprobs(tokens: &[(String, f32)]) -> Vec<Value> {
    let token = |(text, logprob): &(String, f32)| {
        json!({
            "token": text, "logprob": logprob, "bytes": text.as_bytes(), "top_logprobs": [],
        })
    };
    tokens.iter().map(token).collect()
}
