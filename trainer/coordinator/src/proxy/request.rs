//! Requests of agents: parsed, and checked against what the job samples. Pure.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ProxyError;
use super::tools::{RawToolCall, ToolChoice, calls, tool_choice};
use crate::text::{Message, MessageContent, Tool, Tools};

/// Most choices of a request.
const MAX_CHOICES: u32 = 128;
/// Most stop strings of a request, as in OpenAI's API.
const MAX_STOP: usize = 4;
/// Longest stop string in bytes.
const MAX_STOP_BYTES: usize = 256;
/// Largest reward: sums of rewards stay finite.
const MAX_REWARD: f64 = 1e30;
/// Parameters that do not change what is sampled.
const WITHOUT_EFFECT: [&str; 8] = [
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
];
/// Parameters that may be given their default.
const DEFAULTS: [(&str, f64); 5] = [
    ("frequency_penalty", 0.0),
    ("presence_penalty", 0.0),
    ("repetition_penalty", 1.0),
    ("top_logprobs", 0.0),
    ("top_p", 1.0),
];

/// What a job allows.
#[derive(Clone, Debug)]
pub struct Rules {
    /// `rollout.temperature`.
    pub temperature: f64,
}

/// A valid request for completions.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    pub model: String,
    pub messages: Vec<Message>,
    pub tools: Tools,
    pub tool_choice: ToolChoice,
    /// Number of choices.
    pub n: u32,
    pub max_tokens: Option<u32>,
    /// Stop strings beside those of the job.
    pub stop: Vec<String>,
    pub logprobs: bool,
    pub stream: bool,
    /// Whether the stream ends with the numbers of tokens.
    pub stream_usage: bool,
}

/// A choice of an answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionId {
    /// `id` of the response.
    pub id: String,
    pub choice: u32,
}

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
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct RawMessage {
    role: String,
    content: Option<MessageContent>,
    tool_calls: Option<Vec<RawToolCall>>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Body of a reward, and of the end of a session.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RewardBody {
    reward: f64,
    completion: Option<String>,
    #[serde(default)]
    choice: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FinishBody {
    completion: Option<String>,
    #[serde(default)]
    choice: u32,
}

/// Parses a request for completions.
pub fn chat(body: &[u8], rules: &Rules) -> Result<ChatRequest, ProxyError> {
    let body: Body = parse(body)?;
    check_other(&body.other)?;
    if body.temperature.is_some_and(|given| given.total_cmp(&rules.temperature).is_ne()) {
        let message = format!("the job samples at {} (rollout.temperature)", rules.temperature);
        return Err(ProxyError::parameter("temperature", message));
    }
    let n = body.n.unwrap_or(1);
    if !(1..=MAX_CHOICES).contains(&n) {
        return Err(ProxyError::parameter("n", format!("must be from 1 to {MAX_CHOICES}")));
    }
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    if max_tokens == Some(0) {
        return Err(ProxyError::parameter("max_tokens", "must be at least 1"));
    }
    let messages = body.messages.into_iter().map(message).collect::<Result<Vec<_>, _>>()?;
    match messages.last() {
        None => return Err(ProxyError::parameter("messages", "must not be empty")),
        Some(last) if last.role == "assistant" => {
            let message = "the last message must not be the assistant's";
            return Err(ProxyError::parameter("messages", message));
        }
        Some(_) => {}
    }
    Ok(ChatRequest {
        model: body.model,
        messages,
        tool_choice: tool_choice(body.tool_choice.as_ref())?,
        tools: body.tools.unwrap_or_default().into_iter().collect(),
        n,
        max_tokens,
        stop: stop(body.stop)?,
        logprobs: body.logprobs.unwrap_or(false),
        stream: body.stream.unwrap_or(false),
        stream_usage: body.stream_options.is_some_and(|options| options.include_usage),
    })
}

/// Parses a reward.
pub fn reward(body: &[u8]) -> Result<(f64, Option<CompletionId>), ProxyError> {
    let RewardBody { reward, completion, choice } = parse(body)?;
    if !(-MAX_REWARD..=MAX_REWARD).contains(&reward) {
        let message = format!("must be between -{MAX_REWARD:e} and {MAX_REWARD:e}");
        return Err(ProxyError::parameter("reward", message));
    }
    Ok((reward, completion.map(|id| CompletionId { id, choice })))
}

/// Parses the end of a session.
pub fn finish(body: &[u8]) -> Result<Option<CompletionId>, ProxyError> {
    let FinishBody { completion, choice } = parse(body)?;
    Ok(completion.map(|id| CompletionId { id, choice }))
}

fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, ProxyError> {
    serde_json::from_slice(body).map_err(|error| ProxyError::Json(error.to_string()))
}

fn check_other(other: &Map<String, Value>) -> Result<(), ProxyError> {
    for (name, value) in other {
        let is_default = |(default, number): &(&str, f64)| {
            default == name && value.as_f64().is_some_and(|value| value.total_cmp(number).is_eq())
        };
        let is_text = name == "response_format" && value["type"] == "text";
        let allowed = value.is_null()
            || is_text
            || WITHOUT_EFFECT.contains(&name.as_str())
            || DEFAULTS.iter().any(is_default);
        if !allowed {
            return Err(ProxyError::parameter(name, "is not supported: leave it out"));
        }
    }
    Ok(())
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

fn stop(stop: Option<Stop>) -> Result<Vec<String>, ProxyError> {
    let strings = match stop {
        None => Vec::new(),
        Some(Stop::One(text)) => vec![text],
        Some(Stop::Several(texts)) => texts,
    };
    let fits = |text: &String| !text.is_empty() && text.len() <= MAX_STOP_BYTES;
    if strings.len() > MAX_STOP || !strings.iter().all(fits) {
        let message =
            format!("must be at most {MAX_STOP} strings of 1 to {MAX_STOP_BYTES} bytes each");
        return Err(ProxyError::parameter("stop", message));
    }
    Ok(strings)
}

#[cfg(test)]
mod tests;
