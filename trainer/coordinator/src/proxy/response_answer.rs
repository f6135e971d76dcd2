//! Answers of `/v1/responses`: the object of a response, and the events of a stream. Pure.

use axum::response::sse::Event;
use serde_json::{Value, json};

use super::answer::{Choice, Completed, token_logprobs};
use super::part::{Part, Sent};
use super::request::{Asked, CompletionRequest};
use super::stream::{self, Encoder};
use super::tools::ToolChoice;
use crate::text::Tool;

/// Finish reason of a completion that a limit ended.
const LENGTH: &str = "length";

/// The events of a stream.
pub struct Events {
    request: CompletionRequest,
    /// In seconds.
    created: u64,
    /// Number of the next event.
    number: usize,
    sent: Sent,
}

/// A part of a completion.
struct Item<'a> {
    id: String,
    /// `completed` or `incomplete`.
    status: &'static str,
    content: Content<'a>,
}

enum Content<'a> {
    Text { text: &'a str, logprobs: Vec<Value> },
    Call { call_id: String, name: &'a str, arguments: String },
}

/// The object `response`; `created` in seconds.
pub fn object(completed: &Completed, request: &CompletionRequest, created: u64) -> Value {
    let is_cut = is_cut(completed);
    let (input, output) = (completed.prompt_tokens, completed.completion_tokens());
    let cause = json!({"reason": "max_output_tokens"});
    let usage = json!({
        "input_tokens": input, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input.saturating_add(output),
    });
    let fields = [
        ("status", json!(if is_cut { "incomplete" } else { "completed" })),
        ("incomplete_details", if is_cut { cause } else { Value::Null }),
        ("output", items(completed).iter().map(Item::whole).collect()),
        ("usage", usage),
    ];
    with(in_progress(completed, request, created), fields)
}

impl Events {
    pub fn new(request: CompletionRequest, created: u64) -> Self {
        Self { request, created, number: 0, sent: Sent::default() }
    }

    /// The events with what is new: first a response in progress, at last the whole response.
    pub fn next(&mut self, completed: &Completed) -> Vec<Value> {
        // A response has one completion.
        let part = completed.choices.first().and_then(|choice| self.sent.part(choice));
        let Some(part) = part else { return Vec::new() };
        let mut events = Vec::new();
        if part.is_first {
            let begun = in_progress(completed, &self.request, self.created);
            events.push(event("response.created", json!({ "response": begun })));
            events.push(event("response.in_progress", json!({ "response": begun })));
        }
        for (index, item) in items(completed).iter().enumerate() {
            events.extend(item.events(index, &part));
        }
        if completed.is_whole() {
            let end = if is_cut(completed) { "response.incomplete" } else { "response.completed" };
            let whole = object(completed, &self.request, self.created);
            events.push(event(end, json!({ "response": whole })));
        }
        let first = self.number;
        self.number = first.saturating_add(events.len());
        let numbers = first..;
        let numbered = events.into_iter().zip(numbers);
        numbered.map(|(event, number)| with(event, [("sequence_number", json!(number))])).collect()
    }
}

impl Encoder for Events {
    fn events(&mut self, completed: &Completed) -> Vec<Event> {
        stream::named(&self.next(completed))
    }
}

fn event(kind: &str, fields: Value) -> Value {
    with(fields, [("type", json!(kind))])
}

impl Item<'_> {
    /// The events of a part of the completion. Calls are in the last part.
    fn events(&self, index: usize, part: &Part) -> Vec<Value> {
        let at = [("item_id", json!(self.id)), ("output_index", json!(index))];
        let (begins, ends, content) = match &self.content {
            Content::Text { text, logprobs } => {
                let at = at.into_iter().chain([("content_index", json!(0))]);
                let events = text_events(part, text, logprobs).into_iter();
                let events = events.map(|event| with(event, at.clone())).collect();
                (part.is_first, part.choice.finish_reason.is_some(), events)
            }
            Content::Call { name, arguments, .. } => {
                let delta = with(json!({ "delta": arguments }), at.clone());
                let done = with(json!({"arguments": arguments, "name": name}), at);
                let events = vec![
                    event("response.function_call_arguments.delta", delta),
                    event("response.function_call_arguments.done", done),
                ];
                (true, true, events)
            }
        };
        let item = |kind, item| event(kind, json!({"output_index": index, "item": item}));
        let begin = begins.then(|| item("response.output_item.added", self.begun()));
        let end = ends.then(|| item("response.output_item.done", self.whole()));
        begin.into_iter().chain(content).chain(end).collect()
    }

    fn whole(&self) -> Value {
        match &self.content {
            Content::Text { text, logprobs } => {
                self.message(self.status, &json!([part(text, logprobs)]))
            }
            Content::Call { arguments, .. } => self.call("completed", arguments),
        }
    }

    /// The item before its content.
    fn begun(&self) -> Value {
        match &self.content {
            Content::Text { .. } => self.message("in_progress", &json!([])),
            Content::Call { .. } => self.call("in_progress", ""),
        }
    }

    fn message(&self, status: &str, content: &Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "status": status,
            "content": content,
        })
    }

    fn call(&self, status: &str, arguments: &str) -> Value {
        let (call_id, name) = match &self.content {
            Content::Call { call_id, name, .. } => (call_id.as_str(), *name),
            Content::Text { .. } => ("", ""),
        };
        json!({
            "id": self.id, "type": "function_call", "call_id": call_id, "name": name,
            "arguments": arguments, "status": status,
        })
    }
}

/// The events of a part of a text with its log-probabilities.
fn text_events(new: &Part, text: &str, logprobs: &[Value]) -> Vec<Value> {
    let mut events = Vec::new();
    if new.is_first {
        events.push(event("response.content_part.added", json!({ "part": part("", &[]) })));
    }
    if new.has_text() {
        let logprobs = token_logprobs(new.choice.logprobs.as_deref().unwrap_or_default());
        let delta = json!({"delta": new.choice.text, "logprobs": logprobs});
        events.push(event("response.output_text.delta", delta));
    }
    if new.choice.finish_reason.is_some() {
        let done = json!({"text": text, "logprobs": logprobs});
        events.push(event("response.output_text.done", done));
        let done = json!({ "part": part(text, logprobs) });
        events.push(event("response.content_part.done", done));
    }
    events
}

/// A text in a message.
fn part(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

/// Whether a limit ended a completion.
fn is_cut(completed: &Completed) -> bool {
    completed.choices.iter().any(|choice| choice.finish_reason == Some(LENGTH))
}

/// An object with further fields.
fn with(object: Value, fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let mut object = object;
    if let Value::Object(own) = &mut object {
        own.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
    object
}

/// A response in progress.
fn in_progress(completed: &Completed, request: &CompletionRequest, created: u64) -> Value {
    let instructions = match &request.asked {
        Asked::Messages(messages) if request.context.instructed => {
            messages.first().map(|message| message.content.as_str())
        }
        _ => None,
    };
    let tool_choice = match request.tool_choice {
        ToolChoice::Auto => "auto",
        ToolChoice::None => "none",
    };
    json!({
        "id": completed.id, "object": "response", "created_at": created, "model": request.model,
        "status": "in_progress", "error": null, "incomplete_details": null, "output": [],
        "instructions": instructions, "previous_response_id": request.context.previous,
        "max_output_tokens": request.max_tokens, "parallel_tool_calls": true,
        "tools": request.tools.iter().map(tool).collect::<Vec<_>>(), "tool_choice": tool_choice,
        "metadata": {}, "text": {"format": {"type": "text"}}, "truncation": "disabled",
        "usage": null,
    })
}

/// A tool in the shape of the API of responses.
fn tool(tool: &Tool) -> Value {
    let mut nested = serde_json::to_value(tool).unwrap_or_default();
    let function = nested.get_mut("function").map(Value::take).unwrap_or_default();
    with(function, [("type", json!("function")), ("strict", json!(false))])
}

/// The items of all completions.
fn items(completed: &Completed) -> Vec<Item<'_>> {
    completed.choices.iter().flat_map(|choice| items_of(&completed.id, choice)).collect()
}

/// The items of a completion: its text, unless it is only calls, and its calls.
fn items_of<'a>(id: &str, choice: &'a Choice) -> Vec<Item<'a>> {
    let message = || Item {
        id: format!("msg-{id}"),
        status: if choice.finish_reason == Some(LENGTH) { "incomplete" } else { "completed" },
        content: Content::Text {
            text: &choice.text,
            logprobs: token_logprobs(choice.logprobs.as_deref().unwrap_or_default()),
        },
    };
    let has_text = !choice.text.is_empty() || choice.tool_calls.is_empty();
    let calls = choice.tool_calls.iter().enumerate().map(|(number, call)| Item {
        id: format!("fc-{id}-{number}"),
        status: "completed",
        content: Content::Call {
            call_id: format!("call-{id}-{number}"),
            name: &call.name,
            arguments: Value::Object(call.arguments.clone()).to_string(),
        },
    });
    has_text.then(message).into_iter().chain(calls).collect()
}

#[cfg(test)]
mod tests;
