//! Answers of `/v1/responses`: the object of a response, and the events of a stream. Pure.

use serde_json::{Value, json};

use super::answer::{Choice, Completed, token_logprobs};
use super::request::{Asked, CompletionRequest};
use super::tools::ToolChoice;
use crate::text::Tool;

/// Events of a stream with their numbers.
#[derive(Default)]
struct Events(Vec<Value>);

/// The object `response`; `created` in seconds.
pub fn object(completed: &Completed, request: &CompletionRequest, created: u64) -> Value {
    let is_cut = completed.choices.iter().any(|choice| choice.finish_reason == "length");
    let (input, output) = (completed.prompt_tokens, completed.completion_tokens());
    let mut object = shell(completed, request, created);
    object["status"] = json!(if is_cut { "incomplete" } else { "completed" });
    object["incomplete_details"] =
        if is_cut { json!({"reason": "max_output_tokens"}) } else { Value::Null };
    object["output"] =
        completed.choices.iter().flat_map(|choice| items(completed, choice)).collect();
    object["usage"] = json!({
        "input_tokens": input, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input.saturating_add(output),
    });
    object
}

/// The events of a stream: a response in progress, each item, and the whole response.
pub fn events(completed: &Completed, request: &CompletionRequest, created: u64) -> Vec<Value> {
    let mut events = Events::default();
    let (begun, whole) = (shell(completed, request, created), object(completed, request, created));
    events.add("response.created", json!({ "response": begun }));
    events.add("response.in_progress", json!({ "response": begun }));
    let items = completed.choices.iter().flat_map(|choice| items(completed, choice));
    for (index, item) in items.enumerate() {
        match item["type"].as_str() {
            Some("function_call") => events.call(index, &item),
            _ => events.message(index, &item),
        }
    }
    let end =
        if whole["status"] == "completed" { "response.completed" } else { "response.incomplete" };
    events.add(end, json!({ "response": whole }));
    events.0
}

impl Events {
    fn add(&mut self, kind: &str, mut event: Value) {
        event["type"] = json!(kind);
        event["sequence_number"] = json!(self.0.len());
        self.0.push(event);
    }

    fn message(&mut self, index: usize, item: &Value) {
        let part = &item["content"][0];
        let at = |mut event: Value| {
            event["item_id"] = item["id"].clone();
            event["output_index"] = json!(index);
            event["content_index"] = json!(0);
            event
        };
        let mut begun = item.clone();
        (begun["status"], begun["content"]) = (json!("in_progress"), json!([]));
        let mut empty = part.clone();
        (empty["text"], empty["logprobs"]) = (json!(""), json!([]));
        let logprobs = &part["logprobs"];
        self.add("response.output_item.added", json!({"output_index": index, "item": begun}));
        self.add("response.content_part.added", at(json!({ "part": empty })));
        let delta = at(json!({"delta": part["text"], "logprobs": logprobs}));
        self.add("response.output_text.delta", delta);
        let done = at(json!({"text": part["text"], "logprobs": logprobs}));
        self.add("response.output_text.done", done);
        self.add("response.content_part.done", at(json!({ "part": part })));
        self.add("response.output_item.done", json!({"output_index": index, "item": item}));
    }

    fn call(&mut self, index: usize, item: &Value) {
        let at = |mut event: Value| {
            event["item_id"] = item["id"].clone();
            event["output_index"] = json!(index);
            event
        };
        let mut begun = item.clone();
        (begun["status"], begun["arguments"]) = (json!("in_progress"), json!(""));
        let arguments = &item["arguments"];
        self.add("response.output_item.added", json!({"output_index": index, "item": begun}));
        let delta = at(json!({ "delta": arguments }));
        self.add("response.function_call_arguments.delta", delta);
        let done = at(json!({"arguments": arguments, "name": item["name"]}));
        self.add("response.function_call_arguments.done", done);
        self.add("response.output_item.done", json!({"output_index": index, "item": item}));
    }
}

/// A response in progress.
fn shell(completed: &Completed, request: &CompletionRequest, created: u64) -> Value {
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
    let nested = serde_json::to_value(tool).unwrap_or_default();
    let mut flat = nested["function"].clone();
    flat["type"] = json!("function");
    flat["strict"] = json!(false);
    flat
}

/// The items of a completion: its text, unless it is only calls, and its calls.
fn items(completed: &Completed, choice: &Choice) -> Vec<Value> {
    let status = if choice.finish_reason == "length" { "incomplete" } else { "completed" };
    let id = &completed.id;
    let message = || {
        let logprobs = token_logprobs(choice.logprobs.as_deref().unwrap_or_default());
        json!({
            "id": format!("msg-{id}"), "type": "message", "role": "assistant", "status": status,
            "content": [{
                "type": "output_text", "text": choice.text, "annotations": [],
                "logprobs": logprobs,
            }],
        })
    };
    let has_text = !choice.text.is_empty() || choice.tool_calls.is_empty();
    let calls = choice.tool_calls.iter().enumerate().map(|(number, call)| {
        json!({
            "id": format!("fc-{id}-{number}"), "type": "function_call",
            "call_id": format!("call-{id}-{number}"), "name": call.name,
            "arguments": Value::Object(call.arguments.clone()).to_string(), "status": "completed",
        })
    });
    has_text.then(message).into_iter().chain(calls).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::request::{Api, Context};
    use crate::text::{Message, ToolCall};

    fn request() -> CompletionRequest {
        let messages = vec![Message::new("system", "Add."), Message::user("1+1")];
        CompletionRequest {
            context: Context { previous: None, instructed: true },
            tools: [Tool::new("add", "Adds.", &json!({"type": "object"}))].into_iter().collect(),
            ..CompletionRequest::new(Api::Responses, "m".to_owned(), Asked::Messages(messages))
        }
    }

    fn completed(text: &str, calls: u32, finish_reason: &'static str) -> Completed {
        let call = |number: u32| ToolCall {
            name: "add".to_owned(),
            arguments: serde_json::Map::from_iter([("a".to_owned(), number.into())]),
        };
        let choice = Choice {
            text: text.to_owned(),
            tool_calls: (0..calls).map(call).collect(),
            finish_reason,
            tokens: 3,
            logprobs: None,
            token_ids: None,
        };
        let id = "resp-0".to_owned();
        Completed { id, prompt_tokens: 5, prompt_ids: None, choices: vec![choice] }
    }

    #[test]
    fn a_response_has_the_text_and_the_calls_of_a_completion_as_items() {
        let found = object(&completed("2", 1, "tool_calls"), &request(), 7);
        let tool = json!({
            "type": "function", "name": "add", "description": "Adds.", "strict": false,
            "parameters": {"type": "object"},
        });
        let expected = json!({
            "id": "resp-0", "object": "response", "created_at": 7, "model": "m",
            "status": "completed", "error": null, "incomplete_details": null,
            "instructions": "Add.", "previous_response_id": null, "max_output_tokens": null,
            "parallel_tool_calls": true, "tools": [tool], "tool_choice": "auto", "metadata": {},
            "text": {"format": {"type": "text"}}, "truncation": "disabled",
            "output": [
                {"id": "msg-resp-0", "type": "message", "role": "assistant",
                 "status": "completed", "content": [{
                    "type": "output_text", "text": "2", "annotations": [], "logprobs": [],
                 }]},
                {"id": "fc-resp-0-0", "type": "function_call", "call_id": "call-resp-0-0",
                 "name": "add", "arguments": "{\"a\":0}", "status": "completed"},
            ],
            "usage": {
                "input_tokens": 5, "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 8,
            },
        });
        assert_eq!(found, expected);
        let only_calls = object(&completed("", 2, "tool_calls"), &request(), 7);
        assert_eq!(only_calls["output"].as_array().map(Vec::len), Some(2));
        let cut = object(&completed("", 0, "length"), &request(), 7);
        assert_eq!(cut["status"], "incomplete");
        assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(cut["output"][0]["status"], "incomplete");
    }

    #[test]
    fn a_stream_ends_with_the_response_and_its_events_are_numbered() {
        let (completed, request) = (completed("2", 1, "tool_calls"), request());
        let events = events(&completed, &request, 7);
        let kinds: Vec<_> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        assert_eq!(
            kinds,
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.output_item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.completed",
            ]
        );
        let numbers = events.iter().map(|event| event["sequence_number"].as_u64());
        assert!(numbers.eq((0..13).map(Some)));
        assert_eq!(events[12]["response"], object(&completed, &request, 7));
        assert_eq!(events[4]["delta"], "2");
        assert_eq!(events[9]["delta"], "{\"a\":0}");
        assert_eq!(events[9]["item_id"], "fc-resp-0-0");
    }
}
