//! Completions of a request, and answers of `/v1/chat/completions`: one object, or chunks of a
//! stream.

use serde_json::{Value, json};

use super::request::CompletionRequest;
use crate::text::ToolCall;

/// The completions of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Completed {
    pub id: String,
    pub prompt_tokens: usize,
    /// Tokens before the completions, if the request asks for ids.
    pub prompt_ids: Option<Vec<i64>>,
    pub choices: Vec<Choice>,
}

/// A completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Without special tokens, the stop string and calls.
    pub text: String,
    pub tool_calls: Vec<ToolCall>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
    /// Number of tokens.
    pub tokens: usize,
    /// Text and log-probability of each token, if the request asks for them.
    pub logprobs: Option<Vec<(String, f32)>>,
    /// Token ids, if the request asks for them.
    pub token_ids: Option<Vec<i64>>,
}

impl Completed {
    /// The object `chat.completion`; `created` in seconds.
    pub fn object(&self, request: &CompletionRequest, created: u64) -> Value {
        let choices = (0_u32..).zip(&self.choices).map(|(index, choice)| {
            json!({
                "index": index,
                "message": self.message(index, choice, false),
                "finish_reason": choice.finish_reason,
                "logprobs": choice.logprobs.as_deref().map(logprobs),
            })
        });
        json!({
            "id": self.id, "object": "chat.completion", "created": created,
            "model": request.model, "choices": choices.collect::<Vec<_>>(), "usage": self.usage(),
        })
    }

    /// The objects `chat.completion.chunk`: the text of a choice, then its end.
    pub fn chunks(&self, request: &CompletionRequest, created: u64) -> Vec<Value> {
        let chunk = |choices: Value, usage: Value| {
            json!({
                "id": self.id, "object": "chat.completion.chunk", "created": created,
                "model": request.model, "choices": choices, "usage": usage,
            })
        };
        let mut chunks = Vec::new();
        for (index, choice) in (0_u32..).zip(&self.choices) {
            let text = json!([{
                "index": index, "delta": self.message(index, choice, true), "finish_reason": null,
                "logprobs": choice.logprobs.as_deref().map(logprobs),
            }]);
            chunks.push(chunk(text, Value::Null));
            let end = json!([{
                "index": index, "delta": {}, "finish_reason": choice.finish_reason,
                "logprobs": null,
            }]);
            chunks.push(chunk(end, Value::Null));
        }
        if request.stream_usage {
            chunks.push(chunk(json!([]), self.usage()));
        }
        chunks
    }

    /// The message of the assistant; in a stream, calls have an index.
    fn message(&self, index: u32, choice: &Choice, streamed: bool) -> Value {
        // A message that is only calls has no content.
        let content =
            Some(&choice.text).filter(|text| !text.is_empty() || choice.tool_calls.is_empty());
        let fields =
            [("role", json!("assistant")), ("content", json!(content)), ("refusal", Value::Null)];
        let calls = choice.tool_calls.iter().enumerate();
        let calls: Vec<Value> =
            calls.map(|(number, call)| self.call(index, number, call, streamed)).collect();
        let calls = (!calls.is_empty()).then_some(("tool_calls", Value::Array(calls)));
        object(fields.into_iter().chain(calls))
    }

    fn call(&self, index: u32, number: usize, call: &ToolCall, streamed: bool) -> Value {
        let arguments = Value::Object(call.arguments.clone()).to_string();
        let fields = [
            ("id", json!(format!("call-{}-{index}-{number}", self.id))),
            ("type", json!("function")),
            ("function", json!({"name": call.name, "arguments": arguments})),
        ];
        object(fields.into_iter().chain(streamed.then(|| ("index", json!(number)))))
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

fn object(fields: impl Iterator<Item = (&'static str, Value)>) -> Value {
    fields.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn logprobs(tokens: &[(String, f32)]) -> Value {
    json!({ "content": token_logprobs(tokens), "refusal": null })
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
