//! Tests of streams of chunks.

use serde_json::json;

use super::*;
use crate::proxy::answer::Choice;
use crate::proxy::request::{Api, Asked};
use crate::proxy::{chat_answer, prompt_answer};
use crate::text::ToolCall;

/// A choice with a token for each character.
fn choice(text: &str, tokens: usize, finish_reason: Option<&'static str>) -> Choice {
    let characters = text.chars().map(String::from).zip(1_u8..);
    let logprobs = characters.map(|(text, number)| (text, -f32::from(number)));
    Choice {
        text: text.to_owned(),
        finish_reason,
        tokens,
        logprobs: Some(logprobs.take(tokens).collect()),
        token_ids: Some((0..tokens as i64).collect()),
        ..Choice::default()
    }
}

fn completed(choices: &[Choice]) -> Completed {
    let (id, prompt_ids) = ("c-0".to_owned(), Some(vec![7, 8]));
    Completed { id, prompt_tokens: 2, prompt_ids, choices: choices.to_vec() }
}

/// The chunks of two choices that are sampled side by side, by progress.
fn streamed(shape: Shape, api: Api) -> Vec<Vec<Value>> {
    let asked = Asked::Text("1+1".to_owned());
    let request = CompletionRequest {
        stream_usage: true,
        ..CompletionRequest::new(api, "m".to_owned(), asked)
    };
    let mut chunks = Chunks::new(shape, request, 7);
    let progress = [
        [choice("", 0, None), choice("", 0, None)],
        [choice("né", 2, None), choice("", 0, None)],
        [choice("né", 2, None), choice("x", 1, None)],
        [choice("né w", 4, Some("stop")), choice("x", 2, Some("length"))],
    ];
    progress.iter().map(|choices| chunks.next(&completed(choices))).collect()
}

#[test]
fn chunks_of_chat_completions_have_what_is_new_with_the_index_of_the_choice() {
    let shape = Shape { object: chat_answer::CHUNK, part: chat_answer::chunks };
    let found = streamed(shape, Api::Chat);
    let token = |text: &str, logprob: f32| {
        json!({
            "token": text, "logprob": logprob, "bytes": text.as_bytes(), "top_logprobs": [],
        })
    };
    let chunk = |choices: Value, usage: Value| {
        json!({
            "id": "c-0", "object": "chat.completion.chunk", "created": 7, "model": "m",
            "choices": choices, "usage": usage,
        })
    };
    let delta = |index: u32, delta: Value, tokens: &[Value]| {
        let logprobs = json!({"content": tokens, "refusal": null});
        let choice = json!({
            "index": index, "delta": delta, "finish_reason": null, "logprobs": logprobs,
        });
        chunk(json!([choice]), Value::Null)
    };
    let end = |index: u32, reason: &str| {
        let choice =
            json!({"index": index, "delta": {}, "finish_reason": reason, "logprobs": null});
        chunk(json!([choice]), Value::Null)
    };
    let first = |text: &str| json!({"role": "assistant", "content": text, "refusal": null});
    let usage = json!({"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8});
    let expected = [
        vec![],
        vec![delta(0, first("né"), &[token("n", -1.0), token("é", -2.0)])],
        vec![delta(1, first("x"), &[token("x", -1.0)])],
        vec![
            delta(0, json!({"content": " w"}), &[token(" ", -3.0), token("w", -4.0)]),
            end(0, "stop"),
            end(1, "length"),
            chunk(json!([]), usage),
        ],
    ];
    assert_eq!(found, expected);
}

#[test]
fn chunks_of_completions_have_the_ids_and_offsets_of_their_tokens() {
    let shape = Shape { object: prompt_answer::OBJECT, part: prompt_answer::chunks };
    let found = streamed(shape, Api::Completions);
    let first = &found[1][0]["choices"][0];
    let logprobs = json!({
        "tokens": ["n", "é"], "token_logprobs": [-1.0, -2.0], "text_offset": [0, 1],
        "top_logprobs": null,
    });
    let expected = json!({
        "index": 0, "text": "né", "finish_reason": null, "logprobs": logprobs,
        "token_ids": [0, 1], "prompt_token_ids": [7, 8],
    });
    assert_eq!(first, &expected);
    let logprobs = json!({
        "tokens": [" ", "w"], "token_logprobs": [-3.0, -4.0], "text_offset": [2, 3],
        "top_logprobs": null,
    });
    let expected = json!({
        "index": 0, "text": " w", "finish_reason": "stop", "logprobs": logprobs,
        "token_ids": [2, 3],
    });
    assert_eq!(found[3][0]["choices"][0], expected);
    assert_eq!(found[3][1]["choices"][0]["text"], "");
    assert_eq!(found[3][1]["choices"][0]["token_ids"], json!([1]));
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 1, 3]);
}

#[test]
fn calls_follow_the_text_of_their_message() {
    let request = CompletionRequest::new(Api::Chat, "m".to_owned(), Asked::Text("1+1".to_owned()));
    let shape = Shape { object: chat_answer::CHUNK, part: chat_answer::chunks };
    let mut chunks = Chunks::new(shape, request, 7);
    let text = Choice { text: "I add.".to_owned(), ..Choice::default() };
    let call = ToolCall { name: "add".to_owned(), arguments: serde_json::Map::new() };
    let whole =
        Choice { tool_calls: vec![call], finish_reason: Some("tool_calls"), ..text.clone() };
    assert_eq!(chunks.next(&completed(&[text]))[0]["choices"][0]["delta"]["content"], "I add.");
    let end = chunks.next(&completed(&[whole]));
    let function = json!({"name": "add", "arguments": "{}"});
    let call = json!({"id": "call-c-0-0-0", "type": "function", "function": function, "index": 0});
    assert_eq!(end[0]["choices"][0]["delta"], json!({"content": null, "tool_calls": [call]}));
    assert_eq!(end[1]["choices"][0]["finish_reason"], "tool_calls");
}
