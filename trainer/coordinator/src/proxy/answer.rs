//! Answers to agents: chat completions as one object, or as server-sent events.

use serde_json::{Value, json};

use super::request::ChatRequest;

/// The completions of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Completed {
    pub id: String,
    pub prompt_tokens: usize,
    pub choices: Vec<Choice>,
}

/// A completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Without special tokens and the stop string.
    pub text: String,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
    /// Text and log-probability of each token.
    pub tokens: Vec<(String, f32)>,
}

impl Completed {
    /// The object `chat.completion`; `created` in seconds.
    pub fn object(&self, request: &ChatRequest, created: u64) -> Value {
        let choices = (0_u32..).zip(&self.choices).map(|(index, choice)| {
            json!({
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": null},
                "finish_reason": choice.finish_reason,
                "logprobs": request.logprobs.then(|| logprobs(choice)),
            })
        });
        json!({
            "id": self.id, "object": "chat.completion", "created": created,
            "model": request.model, "choices": choices.collect::<Vec<_>>(), "usage": self.usage(),
        })
    }

    /// The objects `chat.completion.chunk`: the text of a choice, then its end.
    pub fn chunks(&self, request: &ChatRequest, created: u64) -> Vec<Value> {
        let chunk = |choices: Value, usage: Value| {
            json!({
                "id": self.id, "object": "chat.completion.chunk", "created": created,
                "model": request.model, "choices": choices, "usage": usage,
            })
        };
        let mut chunks = Vec::new();
        for (index, choice) in (0_u32..).zip(&self.choices) {
            let delta = json!({"role": "assistant", "content": choice.text});
            let text = json!([{
                "index": index, "delta": delta, "finish_reason": null,
                "logprobs": request.logprobs.then(|| logprobs(choice)),
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

    fn usage(&self) -> Value {
        let completion: usize = self.choices.iter().map(|choice| choice.tokens.len()).sum();
        json!({
            "prompt_tokens": self.prompt_tokens, "completion_tokens": completion,
            "total_tokens": self.prompt_tokens.saturating_add(completion),
        })
    }
}

fn logprobs(choice: &Choice) -> Value {
    let token = |(text, logprob): &(String, f32)| {
        json!({
            "token": text, "logprob": logprob, "bytes": text.as_bytes(), "top_logprobs": [],
        })
    };
    json!({ "content": choice.tokens.iter().map(token).collect::<Vec<_>>(), "refusal": null })
}
