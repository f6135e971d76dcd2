//! Answers of `/v1/completions`: one object, or chunks of a stream. Pure.

use serde_json::{Value, json};

use super::answer::Completed;
use super::part::{Part, Sent};
use super::request::CompletionRequest;

/// The object `text_completion`; `created` in seconds.
pub fn object(completed: &Completed, request: &CompletionRequest, created: u64) -> Value {
    let choices = (0_u32..).zip(&completed.choices);
    let choices: Vec<Value> = choices
        .filter_map(|(index, whole)| Some((index, Sent::default().part(whole)?)))
        .map(|(index, part)| choice(completed, index, &part))
        .collect();
    shell(completed, request, created, &json!(choices), &completed.usage())
}

/// The objects of a part of a choice.
pub fn chunks(
    completed: &Completed,
    request: &CompletionRequest,
    created: u64,
    index: u32,
    part: &Part,
) -> Vec<Value> {
    let choices = json!([choice(completed, index, part)]);
    vec![shell(completed, request, created, &choices, &Value::Null)]
}

/// The object with the numbers of tokens.
pub fn usage_chunk(completed: &Completed, request: &CompletionRequest, created: u64) -> Value {
    shell(completed, request, created, &json!([]), &completed.usage())
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

/// A choice; the first part of a stream has the token ids of the prompt.
fn choice(completed: &Completed, index: u32, part: &Part) -> Value {
    let Part { choice, is_first, offset } = part;
    let fields = [
        ("index", json!(index)),
        ("text", json!(choice.text)),
        ("finish_reason", json!(choice.finish_reason)),
        ("logprobs", json!(choice.logprobs.as_deref().map(|tokens| logprobs(tokens, *offset)))),
    ];
    // As in vLLM.
    let ids = choice.token_ids.as_ref().map(|ids| ("token_ids", json!(ids)));
    let prompt = completed.prompt_ids.as_ref().filter(|_| *is_first);
    let prompt = prompt.map(|prompt| ("prompt_token_ids", json!(prompt)));
    let fields = fields.into_iter().chain(ids).chain(prompt);
    fields.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// `offset` is the number of characters before the tokens.
fn logprobs(tokens: &[(String, f32)], offset: usize) -> Value {
    let offsets = tokens.iter().scan(offset, |offset, (text, _)| {
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
