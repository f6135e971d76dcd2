//! Answers of `/v1/completions`: one object, or chunks of a stream. Pure.

use serde_json::{Value, json};

use super::answer::Completed;
use super::part::{Part, Sent};
use super::request::CompletionRequest;

/// Name of the object, and of the chunks of a stream.
pub const OBJECT: &str = "text_completion";

/// The object `text_completion`; `created` in seconds.
pub fn object(completed: &Completed, request: &CompletionRequest, created: u64) -> Value {
    let choices = (0_u32..).zip(&completed.choices);
    let choices: Vec<Value> = choices
        .filter_map(|(index, whole)| Some((index, Sent::default().part(whole)?)))
        .map(|(index, part)| choice(completed, index, &part))
        .collect();
    completed.object(OBJECT, &request.model, created, &choices, &completed.usage())
}

/// The choice of the chunk of a part.
pub fn chunks(completed: &Completed, index: u32, part: &Part) -> Vec<Value> {
    vec![choice(completed, index, part)]
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
