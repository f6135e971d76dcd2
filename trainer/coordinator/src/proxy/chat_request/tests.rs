//! Tests of requests for completions of a conversation.

use serde_json::{Value, json};

use super::*;
use crate::proxy::tools::ToolChoice;

const RULES: Rules = Rules { temperature: 0.8 };

fn parsed(more: &Value) -> Result<CompletionRequest, ProxyError> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "1+1"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    chat(body.to_string().as_bytes(), &RULES)
}

#[test]
fn a_request_has_the_defaults_of_the_api() {
    let asked = Asked::Messages(vec![Message::user("1+1")]);
    let expected = CompletionRequest::new(Api::Chat, "m".to_owned(), asked);
    assert_eq!(parsed(&json!({})), Ok(expected.clone()));
    let neutral = json!({
        "temperature": 0.8, "top_p": 1, "presence_penalty": 0, "tools": null, "user": "me",
        "tool_choice": "auto",
        "response_format": {"type": "text"},
    });
    assert_eq!(parsed(&neutral), Ok(expected.clone()));
    let parts = json!([{"role": "user", "content": [
        {"type": "text", "text": "1"}, {"type": "text", "text": "+1"},
    ]}]);
    assert_eq!(parsed(&json!({ "messages": parts })), Ok(expected));
}

/// A message with a call.
fn with_calls(role: &str, arguments: &str) -> Value {
    let function = json!({"name": "add", "arguments": arguments});
    json!({"role": role, "content": null, "tool_calls": [
        {"id": "call-0", "type": "function", "function": function},
    ]})
}

#[test]
fn tools_keep_their_fields_and_calls_have_parsed_arguments() {
    let tool = json!({"type": "function", "function": {
        "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": false,
    }});
    let result = json!({"role": "tool", "content": "3", "tool_call_id": "call-0"});
    let more = json!({
        "tools": [tool], "tool_choice": "none",
        "messages": [with_calls("assistant", "{\"a\": 1}"), result],
    });
    let request = parsed(&more).unwrap();
    let expected = Tool::new("add", "Adds.", &json!({"type": "object"}));
    assert_eq!(request.tools.iter().collect::<Vec<_>>(), [&expected]);
    assert_eq!(request.tool_choice, ToolChoice::None);
    let arguments = Map::from_iter([("a".to_owned(), json!(1))]);
    let call = crate::text::ToolCall { name: "add".to_owned(), arguments };
    let calls = Message { tool_calls: vec![call], ..Message::new("assistant", "") };
    assert_eq!(request.asked, Asked::Messages(vec![calls, Message::tool("3")]));
}

#[test]
fn parameters_that_change_what_is_sampled_are_rejected_by_name() {
    for (more, param) in [
        (json!({"temperature": 1.0}), "temperature"),
        (json!({"top_p": 0.9}), "top_p"),
        (json!({"seed": 1}), "seed"),
        (json!({"logit_bias": {}}), "logit_bias"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice"),
        (json!({"functions": []}), "functions"),
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"stop": ["a", ""]}), "stop"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "assistant", "content": "2"}]}), "messages"),
        (json!({"messages": [with_calls("user", "{}")]}), "messages.tool_calls"),
        (json!({"messages": [with_calls("assistant", "[1]")]}), "messages.tool_calls"),
    ] {
        let error = parsed(&more).unwrap_err();
        let ProxyError::Parameter { param: found, .. } = &error else { panic!("{error}") };
        assert_eq!(found, param, "{more}");
    }
    let named = json!({"type": "function", "function": {"name": "add"}});
    let error = parsed(&json!({ "tool_choice": named })).unwrap_err().to_string();
    assert!(error.contains("a forced call would not be one that the policy samples"), "{error}");
    let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
    let error = parsed(&json!({ "messages": image })).unwrap_err();
    assert!(matches!(error, ProxyError::Json(_)), "{error}");
}
