//! Tests of responses.

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
        finish_reason: Some(finish_reason),
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
    let events = Events::new(request.clone(), 7).next(&completed);
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

#[test]
fn a_text_is_streamed_in_parts_and_its_end_has_the_whole() {
    let partial = |text: &str| {
        let choice = Choice { text: text.to_owned(), ..Choice::default() };
        Completed { choices: vec![choice], ..completed("", 0, "stop") }
    };
    let mut events = Events::new(request(), 7);
    let mut all = Vec::new();
    for part in [partial(""), partial("I "), partial("I add")] {
        all.extend(events.next(&part));
    }
    let whole = completed("I add.", 1, "tool_calls");
    all.extend(events.next(&whole));
    let kinds: Vec<_> = all.iter().filter_map(|event| event["type"].as_str()).collect();
    let delta = "response.output_text.delta";
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            delta,
            delta,
            delta,
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
    let numbers = all.iter().map(|event| event["sequence_number"].as_u64());
    assert!(numbers.eq((0..15).map(Some)));
    let deltas = all.iter().filter(|event| event["type"] == delta);
    let deltas: Vec<_> = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, ["I ", "add", "."]);
    assert_eq!(all[7]["text"], "I add.");
    assert_eq!(all[14]["response"], object(&whole, &request(), 7));
}
