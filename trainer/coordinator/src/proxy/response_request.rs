//! Parser of requests to `/v1/responses`. Pure.
//!
//! ```text
//!  instructions ─▶ system       text ─▶ user      message ─▶ its role
//!  message of the assistant, function_call… ─▶ one message of the assistant with its calls
//!  function_call_output ─▶ tool
//! ```

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ProxyError;
use super::request::{
    Api, Asked, CompletionRequest, Context, Details, Rules, check_max_tokens, check_messages,
    check_other, check_temperature, parse, unsupported,
};
use super::tools::tool_choice;
use crate::text::{FlatTool, Message, MessageContent, Tool, ToolCall};

/// Includes the log-probabilities of tokens.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Includes what a response of this proxy does not have.
const REASONING: &str = "reasoning.encrypted_content";

#[derive(Deserialize)]
struct Body {
    model: String,
    input: Input,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    tools: Option<Vec<FlatTool>>,
    tool_choice: Option<Value>,
    max_output_tokens: Option<u32>,
    temperature: Option<f64>,
    include: Option<Vec<String>>,
    text: Option<TextOptions>,
    truncation: Option<String>,
    background: Option<bool>,
    stream: Option<bool>,
    /// Has no effect: the numbers of tokens are part of every response.
    #[serde(rename = "stream_options")]
    _stream_options: Option<Value>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize)]
struct TextOptions {
    format: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Item>),
}

#[derive(Deserialize)]
struct Item {
    /// By default `message`.
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<MessageContent>,
    name: Option<String>,
    /// JSON, as text.
    arguments: Option<String>,
    output: Option<MessageContent>,
}

/// Parses a request for a response.
pub fn response(body: &[u8], rules: &Rules) -> Result<CompletionRequest, ProxyError> {
    let body: Body = parse(body)?;
    check_other(&body.other)?;
    check_temperature(body.temperature, rules)?;
    check_max_tokens("max_output_tokens", body.max_output_tokens)?;
    if body.background == Some(true) {
        return Err(unsupported("background"));
    }
    if body.truncation.is_some_and(|truncation| truncation != "disabled") {
        return Err(ProxyError::parameter("truncation", "must be \"disabled\""));
    }
    let format = body.text.and_then(|text| text.format);
    let kind = format.as_ref().map(|format| format.get("type").and_then(Value::as_str));
    if kind.is_some_and(|kind| kind != Some("text")) {
        return Err(ProxyError::parameter("text.format", "must have the type \"text\""));
    }
    let (instructions, input) = (body.instructions, messages(body.input)?);
    check_messages("input", &input)?;
    let context =
        Context { previous: body.previous_response_id, instructed: instructions.is_some() };
    let system = instructions.map(|text| Message::new("system", text));
    let asked = Asked::Messages(system.into_iter().chain(input).collect());
    Ok(CompletionRequest {
        context,
        tool_choice: tool_choice(body.tool_choice.as_ref())?,
        tools: body.tools.unwrap_or_default().into_iter().map(Tool::from).collect(),
        max_tokens: body.max_output_tokens,
        details: details(&body.include.unwrap_or_default())?,
        stream: body.stream.unwrap_or(false),
        ..CompletionRequest::new(Api::Responses, body.model, asked)
    })
}

fn details(include: &[String]) -> Result<Details, ProxyError> {
    if let Some(other) = include.iter().find(|name| ![LOGPROBS, REASONING].contains(&name.as_str()))
    {
        let message = format!("{other} is not supported: leave it out");
        return Err(ProxyError::parameter("include", message));
    }
    Ok(Details { logprobs: include.iter().any(|name| name == LOGPROBS), token_ids: false })
}

fn messages(input: Input) -> Result<Vec<Message>, ProxyError> {
    let items = match input {
        Input::Text(text) => return Ok(vec![Message::user(text)]),
        Input::Items(items) => items,
    };
    let mut messages: Vec<Message> = Vec::new();
    for item in items {
        match item.kind.as_deref() {
            None | Some("message") => messages.push(message(item)?),
            Some("function_call") => {
                let call = call(item)?;
                // A completion is one message, in a response as several items.
                match messages.last_mut().filter(|last| last.role == "assistant") {
                    Some(last) => last.tool_calls.push(call),
                    None => messages
                        .push(Message { tool_calls: vec![call], ..Message::new("assistant", "") }),
                }
            }
            Some("function_call_output") => {
                let output = item.output.ok_or_else(|| missing("output"))?;
                messages.push(Message::tool(String::from(output)));
            }
            Some(other) => {
                let message = format!("items of the type {other} are not supported");
                return Err(ProxyError::parameter("input", message));
            }
        }
    }
    Ok(messages)
}

fn message(item: Item) -> Result<Message, ProxyError> {
    let role = item.role.ok_or_else(|| missing("role"))?;
    let role = if role == "developer" { "system".to_owned() } else { role };
    let content = item.content.ok_or_else(|| missing("content"))?;
    Ok(Message::new(role, String::from(content)))
}

fn call(item: Item) -> Result<ToolCall, ProxyError> {
    let name = item.name.ok_or_else(|| missing("name"))?;
    let arguments = item.arguments.ok_or_else(|| missing("arguments"))?;
    let arguments = ToolCall::parse_arguments(&arguments).map_err(|error| {
        let message = format!("the arguments of {name} are not a JSON object: {error}");
        ProxyError::parameter("input", message)
    })?;
    Ok(ToolCall { name, arguments })
}

fn missing(field: &str) -> ProxyError {
    ProxyError::parameter("input", format!("an item has no {field}"))
}

#[cfg(test)]
mod tests;
