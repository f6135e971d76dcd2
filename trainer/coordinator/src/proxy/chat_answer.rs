//! Answers of `/v1/chat/completions`: one object, or chunks of a stream. Pure.

use serde_json::{Map, Value, json};

use super::answer::{Choice, Completed, token_logprobs};
use super::part::Part;
use super::request::CompletionRequest;
use crate::text::ToolCall;

/// Name of the chunks of a stream.
pub const CHUNK: &str = "chat.completion.chunk";

/// The object `chat.completion`; `created` in seconds.
pub fn object(completed: &Completed, request: &CompletionRequest, created: u64) -> Value {
    let choices = (0_u32..).zip(&completed.choices).map(|(index, choice)| {
        json!({
            "index": index,
            "message": message(completed, index, choice, false),
            "finish_reason": choice.finish_reason,
            "logprobs": choice.logprobs.as_deref().map(logprobs),
        })
    });
    let (choices, usage): (Vec<_>, _) = (choices.collect(), completed.usage());
    completed.object("chat.completion", &request.model, created, &choices, &usage)
}

/// The choices of chunks of a part: its text and calls, then its end.
pub fn chunks(completed: &Completed, index: u32, part: &Part) -> Vec<Value> {
    let Part { choice, is_first, .. } = part;
    let chunk = |delta: Value, finish_reason: Option<&str>, logprobs: Option<Value>| {
        json!({
            "index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs,
        })
    };
    let mut chunks = Vec::new();
    if part.has_text() || !choice.tool_calls.is_empty() {
        let mut delta = message(completed, index, choice, true);
        if !is_first {
            delta.retain(|name, _| name != "role" && name != "refusal");
        }
        chunks.push(chunk(delta.into(), None, choice.logprobs.as_deref().map(logprobs)));
    }
    if choice.finish_reason.is_some() {
        chunks.push(chunk(json!({}), choice.finish_reason, None));
    }
    chunks
}

/// The message of the assistant; in a stream, calls have an index.
fn message(
    completed: &Completed,
    index: u32,
    choice: &Choice,
    streamed: bool,
) -> Map<String, Value> {
    // A message that is only calls has no content.
    let content =
        Some(&choice.text).filter(|text| !text.is_empty() || choice.tool_calls.is_empty());
    let fields =
        [("role", json!("assistant")), ("content", json!(content)), ("refusal", Value::Null)];
    let calls = choice.tool_calls.iter().enumerate();
    let calls: Vec<Value> =
        calls.map(|(number, own)| call(completed, index, number, own, streamed)).collect();
    let calls = (!calls.is_empty()).then_some(("tool_calls", Value::Array(calls)));
    object_of(fields.into_iter().chain(calls))
}

fn call(
    completed: &Completed,
    index: u32,
    number: usize,
    call: &ToolCall,
    streamed: bool,
) -> Value {
    let arguments = Value::Object(call.arguments.clone()).to_string();
    let fields = [
        ("id", json!(format!("call-{}-{index}-{number}", completed.id))),
        ("type", json!("function")),
        ("function", json!({"name": call.name, "arguments": arguments})),
    ];
    object_of(fields.into_iter().chain(streamed.then(|| ("index", json!(number))))).into()
}

fn object_of(fields: impl Iterator<Item = (&'static str, Value)>) -> Map<String, Value> {
    fields.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn logprobs(tokens: &[(String, f32)]) -> Value {
    json!({ "content": token_logprobs(tokens), "refusal": null })
}
