//! Requests of agents: what they have in common, and checks against what the job samples. Pure.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ProxyError;
use super::tools::ToolChoice;
use crate::text::{Message, Tools};

/// Most choices of a request.
const MAX_CHOICES: u32 = 128;
/// Most stop strings of a request, as in OpenAI's API.
const MAX_STOP: usize = 4;
/// Longest stop string in bytes.
const MAX_STOP_BYTES: usize = 256;
/// Largest reward: sums of rewards stay finite.
const MAX_REWARD: f64 = 1e30;
/// Parameters that do not change what is sampled.
const WITHOUT_EFFECT: [&str; 9] = [
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
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

/// Route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
    Responses,
}

/// What the model continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    Messages(Vec<Message>),
    /// A text without the chat template.
    Text(String),
    /// Token ids.
    Tokens(Vec<i64>),
}

/// How messages follow those of an earlier response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The id of that response.
    pub previous: Option<String>,
    /// Whether the first message has the instructions, which later responses do not inherit.
    pub instructed: bool,
}

/// What a response has beside texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub logprobs: bool,
    pub token_ids: bool,
}

/// A valid request for completions.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    pub api: Api,
    pub model: String,
    pub asked: Asked,
    pub context: Context,
    pub tools: Tools,
    pub tool_choice: ToolChoice,
    /// Number of choices.
    pub n: u32,
    pub max_tokens: Option<u32>,
    /// Stop strings beside those of the job.
    pub stop: Vec<String>,
    pub details: Details,
    pub stream: bool,
    /// Whether the stream ends with the numbers of tokens.
    pub stream_usage: bool,
}

impl Api {
    /// Start of the ids of its responses.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Completions => "cmpl",
            Self::Responses => "resp",
        }
    }

    /// Parameter with what the model continues.
    pub fn asked(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completions => "prompt",
            Self::Responses => "input",
        }
    }
}

impl Asked {
    /// What is left after so many messages, bytes or tokens.
    #[must_use]
    pub fn split_off(self, length: usize) -> Self {
        match self {
            Self::Messages(messages) => Self::Messages(messages.into_iter().skip(length).collect()),
            Self::Text(text) => Self::Text(text.get(length..).unwrap_or_default().to_owned()),
            Self::Tokens(tokens) => Self::Tokens(tokens.into_iter().skip(length).collect()),
        }
    }
}

impl CompletionRequest {
    /// One completion with the defaults of the API.
    pub fn new(api: Api, model: String, asked: Asked) -> Self {
        Self {
            api,
            model,
            asked,
            context: Context::default(),
            tools: Tools::default(),
            tool_choice: ToolChoice::Auto,
            n: 1,
            max_tokens: None,
            stop: Vec::new(),
            details: Details::default(),
            stream: false,
            stream_usage: false,
        }
    }
}

/// A choice of an answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionId {
    /// `id` of the response.
    pub id: String,
    pub choice: u32,
}

/// Options of a stream.
#[derive(Deserialize)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: bool,
}

/// Stop strings of a request.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Stop {
    One(String),
    Several(Vec<String>),
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

/// Parses a body.
pub fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, ProxyError> {
    serde_json::from_slice(body).map_err(|error| ProxyError::Json(error.to_string()))
}

/// Checks parameters that no route reads.
pub fn check_other(other: &Map<String, Value>) -> Result<(), ProxyError> {
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
            return Err(unsupported(name));
        }
    }
    Ok(())
}

/// The error for a parameter that would change what is sampled.
pub fn unsupported(name: &str) -> ProxyError {
    ProxyError::parameter(name, "is not supported: leave it out")
}

/// Checks the temperature of a request.
pub fn check_temperature(given: Option<f64>, rules: &Rules) -> Result<(), ProxyError> {
    if given.is_some_and(|given| given.total_cmp(&rules.temperature).is_ne()) {
        let message = format!("the job samples at {} (rollout.temperature)", rules.temperature);
        return Err(ProxyError::parameter("temperature", message));
    }
    Ok(())
}

/// Number of choices.
pub fn choices(n: Option<u32>) -> Result<u32, ProxyError> {
    let n = n.unwrap_or(1);
    if !(1..=MAX_CHOICES).contains(&n) {
        return Err(ProxyError::parameter("n", format!("must be from 1 to {MAX_CHOICES}")));
    }
    Ok(n)
}

/// Checks the longest completion of a request.
pub fn check_max_tokens(param: &str, max_tokens: Option<u32>) -> Result<(), ProxyError> {
    match max_tokens {
        Some(0) => Err(ProxyError::parameter(param, "must be at least 1")),
        _ => Ok(()),
    }
}

/// Checks that a completion of the assistant can follow the messages.
pub fn check_messages(param: &str, messages: &[Message]) -> Result<(), ProxyError> {
    match messages.last() {
        None => Err(ProxyError::parameter(param, "must not be empty")),
        Some(last) if last.role == "assistant" => {
            let message = "the last message must not be the assistant's";
            Err(ProxyError::parameter(param, message))
        }
        Some(_) => Ok(()),
    }
}

/// The stop strings of a request.
pub fn stop(stop: Option<Stop>) -> Result<Vec<String>, ProxyError> {
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
