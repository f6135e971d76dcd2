//! Parser of requests to `/v1/chat/completions`. Pure.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ProxyError;
use super::request::{
    Api, Asked, CompletionRequest, Details, Rules, Stop, StreamOptions, check_max_tokens,
    check_messages, check_other, check_temperature, choices, parse, stop,
};
use super::tools::{RawToolCall, calls, tool_choice};
use crate::text::{Message, MessageContent, Tool};

#[derive(Deserialize)]
struct Body {
    model: String,
    messages: Vec<RawMessage>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Value>,
    n: Option<u32>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    temperature: Option<f64>,
    stop: Option<Stop>,
    logprobs: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize)]
struct RawMessage {
    role: String,
    content: Option<MessageContent>,
    tool_calls: Option<Vec<RawToolCall>>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Parses a request for completions of a conversation.
pub fn chat(body: &[u8], rules: &Rules) -> Result<CompletionRequest, ProxyError> {
    let body: Body = parse(body)?;
    check_other(&body.other)?;
    check_temperature(body.temperature, rules)?;
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    check_max_tokens("max_tokens", max_tokens)?;
    let messages = body.messages.into_iter().map(message).collect::<Result<Vec<_>, _>>()?;
    check_messages("messages", &messages)?;
    Ok(CompletionRequest {
        tool_choice: tool_choice(body.tool_choice.as_ref())?,
        tools: body.tools.unwrap_or_default().into_iter().collect(),
        n: choices(body.n)?,
        max_tokens,
        stop: stop(body.stop)?,
        details: Details { logprobs: body.logprobs.unwrap_or(false), token_ids: false },
        stream: body.stream.unwrap_or(false),
        stream_usage: body.stream_options.is_some_and(|options| options.include_usage),
        ..CompletionRequest::new(Api::Chat, body.model, Asked::Messages(messages))
    })
}

fn message(raw: RawMessage) -> Result<Message, ProxyError> {
    if raw.other.get("function_call").is_some_and(|call| !call.is_null()) {
        let message = "is not supported: use tool_calls";
        return Err(ProxyError::parameter("messages.function_call", message));
    }
    let tool_calls = calls(&raw.role, raw.tool_calls)?;
    let content = raw.content.map_or_else(String::new, String::from);
    Ok(Message { tool_calls, ..Message::new(raw.role, content) })
}

#[cfg(test)]
mod tests;
