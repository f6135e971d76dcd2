//! Tools in requests of agents, and calls in messages of the assistant. Pure.

use serde::Deserialize;
use serde_json::Value;

use super::error::ProxyError;
use crate::text::ToolCall;

/// `tool_calls` of a message.
#[derive(Deserialize)]
pub struct RawToolCall {
    function: RawFunction,
}

#[derive(Deserialize)]
struct RawFunction {
    name: String,
    /// JSON, as text.
    arguments: String,
}

/// Whether calls are parsed. The tools are in the prompt in both cases, so that a request continues
/// its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// Calls are parsed.
    Auto,
    /// Calls are text.
    None,
}

/// Parses `tool_choice`.
pub fn tool_choice(given: Option<&Value>) -> Result<ToolChoice, ProxyError> {
    match given {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) if choice == "auto" => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) if choice == "none" => Ok(ToolChoice::None),
        Some(other) => Err(ProxyError::parameter(
            "tool_choice",
            format!(
                "must be \"auto\" or \"none\", not {other}: a forced call would not be one that \
                 the policy samples"
            ),
        )),
    }
}

/// The calls of a message.
pub fn calls(role: &str, raw: Option<Vec<RawToolCall>>) -> Result<Vec<ToolCall>, ProxyError> {
    let raw = raw.unwrap_or_default();
    if role != "assistant" && !raw.is_empty() {
        let message = "belong to messages of the assistant";
        return Err(ProxyError::parameter("messages.tool_calls", message));
    }
    raw.into_iter().map(|call| tool_call(call.function)).collect()
}

fn tool_call(function: RawFunction) -> Result<ToolCall, ProxyError> {
    let RawFunction { name, arguments } = function;
    let arguments = ToolCall::parse_arguments(&arguments).map_err(|error| {
        let message = format!("the arguments of {name} are not a JSON object: {error}");
        ProxyError::parameter("messages.tool_calls", message)
    })?;
    Ok(ToolCall { name, arguments })
}
