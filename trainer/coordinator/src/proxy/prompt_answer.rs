//! Answers of `/v1/completions`: one object, or chunks of a stream. Pure.

use serde_json::{Value, json};

use super::answer::{Choice, Completed};
use super::request::CompletionRequest;

/// The object `text_completion`; `created` in seconds.
pub fn object(completed: &Completed, request: &CompletionRequest, created: u64) -> Value {
    let choices = (0_u32..).zip(&completed.choices);
    let choices: Vec<Value> =
        choices.map(|(index, choice)| whole(completed, index, choice)).collect();
    shell(completed, request, created, &json!(choices), &completed.usage())
}

/// The objects of a stream: each choice, then the numbers of tokens if the request asks for them.
pub fn chunks(completed: &Completed, request: &CompletionRequest, created: u64) -> Vec<Value> {
    let chunk = |choices: &Value, usage: &Value| shell(completed, request, created, choices, usage);
    let choices = (0_u32..).zip(&completed.choices);
    let mut chunks: Vec<Value> = choices
        .map(|(index, choice)| chunk(&json!([whole(completed, index, choice)]), &Value::Null))
        .collect();
    if request.stream_usage {
        chunks.push(chunk(&json!([]), &completed.usage()));
    }
    chunks
}

fn shell(
    completed: &Completed,
    request: &CompletionRequest,
    created: u64,
    choices: &Value,
    usage: &Value,
) -> Value {
    json!({
        "id": completed.id, "object": "text_completion", "created": created,
        "model": request.model, "choices": choices, "usage": usage,
    })
}

fn whole(completed: &Completed, index: u32, choice: &Choice) -> Value {
    let fields = [
        ("index", json!(index)),
        ("text", json!(choice.text)),
        ("finish_reason", json!(choice.finish_reason)),
        ("logprobs", json!(choice.logprobs.as_deref().map(logprobs))),
    ];
    // As in vLLM.
    let ids = choice.token_ids.as_ref().zip(completed.prompt_ids.as_ref());
    let ids =
        ids.map(|(ids, prompt)| [("token_ids", json!(ids)), ("prompt_token_ids", json!(prompt))]);
    let fields = fields.into_iter().chain(ids.into_iter().flatten());
    fields.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn logprobs(tokens: &[(String, f32)]) -> Value {
    let offsets = tokens.iter().scan(0_usize, |offset, (text, _)| {
        let own = *offset;
        *offset = offset.saturating_add(text.chars().count());
        Some(own)
    });
    json!({
        "tokens": tokens.iter().map(|(text, _)| text).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|(_, logprob)| logprob).collect::<Vec<_>>(),
        "text_offset": offsets.collect::<Vec<_>>(),
        "top_logprobs": null,
    })
}
