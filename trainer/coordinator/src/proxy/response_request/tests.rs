//! Tests of requests for responses.

use serde_json::json;

use super::*;
use crate::proxy::tools::ToolChoice;

fn parsed(more: &Value) -> Result<CompletionRequest, ProxyError> {
    let mut body = json!({"model": "m", "input": "1+1"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    response(body.to_string().as_bytes(), &Rules { temperature: 0.8 })
}

fn request(messages: Vec<Message>) -> CompletionRequest {
    CompletionRequest::new(Api::Responses, "m".to_owned(), Asked::Messages(messages))
}

#[test]
fn a_text_is_a_message_of_the_user_after_the_instructions() {
    assert_eq!(parsed(&json!({})), Ok(request(vec![Message::user("1+1")])));
    let neutral = json!({
        "temperature": 0.8, "store": false, "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}}, "truncation": "disabled", "reasoning": null,
        "background": false, "top_p": 1, "parallel_tool_calls": true,
    });
    assert_eq!(parsed(&neutral), Ok(request(vec![Message::user("1+1")])));
    let more = json!({
        "instructions": "Add.", "previous_response_id": "resp-1", "max_output_tokens": 5,
        "include": ["message.output_text.logprobs"], "tool_choice": "none", "stream": true,
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"},
                   "description": "Adds.", "strict": true}],
    });
    let messages = vec![Message::new("system", "Add."), Message::user("1+1")];
    let expected = CompletionRequest {
        context: Context { previous: Some("resp-1".to_owned()), instructed: true },
        tools: [Tool::new("add", "Adds.", &json!({"type": "object"}))].into_iter().collect(),
        tool_choice: ToolChoice::None,
        max_tokens: Some(5),
        details: Details { logprobs: true, token_ids: false },
        stream: true,
        ..request(messages)
    };
    assert_eq!(parsed(&more), Ok(expected));
}

#[test]
fn the_items_of_a_completion_are_one_message() {
    let call = |name: &str| {
        json!({
            "type": "function_call", "id": "fc", "call_id": "c", "name": name, "arguments": "{}",
        })
    };
    let text = json!([{"type": "output_text", "text": "I ", "annotations": []},
                      {"type": "output_text", "text": "add."}]);
    let items = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "1+1"}]},
        {"type": "message", "id": "msg", "role": "assistant", "status": "completed",
         "content": text},
        call("add"),
        call("check"),
        {"type": "function_call_output", "call_id": "c", "output": "2"},
        call("add"),
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "3"}]},
    ]);
    let made = |names: &[&str], text: &str| Message {
        tool_calls: names
            .iter()
            .map(|name| ToolCall { name: (*name).to_owned(), arguments: Map::new() })
            .collect(),
        ..Message::new("assistant", text)
    };
    let messages = vec![
        Message::new("system", "Be brief."),
        Message::user("1+1"),
        made(&["add", "check"], "I add."),
        Message::tool("2"),
        made(&["add"], ""),
        Message::tool("3"),
    ];
    assert_eq!(parsed(&json!({ "input": items })), Ok(request(messages)));
}

#[test]
fn what_cannot_be_honoured_is_rejected_by_name() {
    let item = |item: Value| json!({"input": [item]});
    for (more, param) in [
        (json!({"temperature": 1}), "temperature"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"background": true}), "background"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"text": {"format": {"type": "json_schema"}}}), "text.format"),
        (json!({"include": ["web_search_call.results"]}), "include"),
        (json!({"reasoning": {"effort": "low"}}), "reasoning"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"input": []}), "input"),
        (item(json!({"role": "assistant", "content": "2"})), "input"),
        (item(json!({"type": "reasoning", "summary": []})), "input"),
        (item(json!({"type": "function_call_output", "call_id": "c"})), "input"),
        (item(json!({"type": "function_call", "name": "a", "arguments": "1"})), "input"),
        (item(json!({"content": "2"})), "input"),
    ] {
        let error = parsed(&more).unwrap_err();
        let ProxyError::Parameter { param: found, .. } = &error else { panic!("{more}: {error}") };
        assert_eq!(found, param, "{more}");
    }
    for more in [
        json!({"tools": [{"type": "web_search"}]}),
        item(json!({"role": "user", "content": [{"type": "input_image", "image_url": "u"}]})),
    ] {
        assert!(matches!(parsed(&more), Err(ProxyError::Json(_))), "{more}");
    }
}
