//! Request bodies of `/v1/completions` and `/v1/chat/completions`, which differ in the prompt and
//! the log-probabilities.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::http::input::{InputIds, OneOrMany, REQUESTS, encode};
use crate::request::{GenerateError, Logprobs, Request, Sampling};

/// Default number of completion tokens of `/v1/completions`.
const MAX_TOKENS: i64 = 16;

/// Body of either route. Unsupported fields are errors.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Body {
    /// Echoed in the response; an engine serves one model.
    pub model: Option<String>,
    prompt: Option<Prompt>,
    messages: Option<Vec<Message>>,
    chat_template_kwargs: BTreeMap<String, Value>,
    logprobs: Option<LogprobsField>,
    top_logprobs: Option<usize>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    min_tokens: Option<i64>,
    n: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    seed: Option<u64>,
    stop: Option<OneOrMany<String>>,
    stop_token_ids: Option<Vec<i64>>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    no_stop_trim: Option<bool>,
    /// Respond with server-sent events.
    pub stream: Option<bool>,
    stream_options: StreamOptions,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// A flag in chats; the number of most likely tokens in completions.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum LogprobsField {
    Flag(bool),
    Number(usize),
}

#[derive(Clone, Debug)]
enum Prompt {
    Text(OneOrMany<String>),
    Ids(InputIds),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let text = value.is_string() || value.get(0).is_some_and(Value::is_string);
        if text {
            serde_json::from_value(value).map(Self::Text)
        } else {
            serde_json::from_value(value).map(Self::Ids)
        }
        .map_err(serde::de::Error::custom)
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    role: String,
    content: Option<OneOrMany<Content>>,
    #[serde(default)]
    name: Option<String>,
}

/// Text, or a content part of type `text`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Part { r#type: String, text: Option<String> },
}

impl Body {
    /// Requests of `/v1/completions`; samples of one prompt are adjacent.
    pub fn completions(&self, engine: &Engine) -> Result<Vec<Request>, GenerateError> {
        if self.messages.is_some()
            || self.top_logprobs.is_some()
            || self.max_completion_tokens.is_some()
            || !self.chat_template_kwargs.is_empty()
        {
            return Err(invalid(
                "messages, top_logprobs, max_completion_tokens and chat_template_kwargs belong to \
                /v1/chat/completions.",
            ));
        }
        let prompts = match self.prompt.clone() {
            None => return Err(invalid("prompt: Field required")),
            Some(Prompt::Text(texts)) => {
                let texts = texts.into_vec();
                if texts.is_empty() || texts.iter().any(String::is_empty) {
                    return Err(invalid("Prompt cannot be empty"));
                }
                texts
                    .iter()
                    .map(|text| encode(engine.tokenizer.as_ref(), text))
                    .collect::<Result<_, _>>()?
            }
            Some(Prompt::Ids(InputIds::One(ids))) => vec![ids],
            Some(Prompt::Ids(InputIds::Many(many))) => many,
        };
        let logprobs = match self.logprobs {
            None => None,
            Some(LogprobsField::Number(top)) => Some(Logprobs { start: None, top, text: true }),
            Some(LogprobsField::Flag(_)) => return Err(invalid("logprobs must be a number.")),
        };
        self.requests(engine, prompts, logprobs, Some(self.max_tokens.unwrap_or(MAX_TOKENS)))
    }

    /// Requests of `/v1/chat/completions`.
    pub fn chat(&self, engine: &Engine) -> Result<Vec<Request>, GenerateError> {
        if self.prompt.is_some() {
            return Err(invalid("prompt belongs to /v1/completions."));
        }
        let messages = self.messages.as_ref().ok_or_else(|| invalid("messages: Field required"))?;
        if messages.is_empty() {
            return Err(invalid("Messages cannot be empty."));
        }
        let tokenizer = engine.tokenizer.as_ref().ok_or_else(|| {
            invalid("a chat requires a tokenizer; the model folder has no tokenizer.json.")
        })?;
        let turns = messages.iter().map(Message::turn).collect::<Result<Vec<_>, _>>()?;
        let text = tokenizer
            .render_messages(&turns, &self.chat_template_kwargs)
            .map_err(|error| invalid(&with_cause(&error)))?;
        let prompt = tokenizer.encode(&text).map_err(|error| invalid(&error.to_string()))?;
        let logprobs = match self.logprobs {
            None | Some(LogprobsField::Flag(false)) => None,
            Some(LogprobsField::Flag(true)) => {
                Some(Logprobs { start: None, top: self.top_logprobs.unwrap_or(0), text: true })
            }
            Some(LogprobsField::Number(_)) => {
                return Err(invalid("logprobs must be true or false."));
            }
        };
        self.requests(
            engine,
            vec![prompt],
            logprobs,
            self.max_completion_tokens.or(self.max_tokens),
        )
    }

    fn requests(
        &self,
        engine: &Engine,
        prompts: Vec<Vec<i64>>,
        logprobs: Option<Logprobs>,
        max: Option<i64>,
    ) -> Result<Vec<Request>, GenerateError> {
        if max.is_some_and(|max| max <= 0) {
            return Err(invalid("max_tokens must be positive"));
        }
        let all = self.n().saturating_mul(prompts.len());
        if all == 0 || all > REQUESTS {
            return Err(invalid(&format!(
                "A request must ask for 1 to {REQUESTS} completions, got {all}."
            )));
        }
        let (sampling, stream) = (self.sampling(max), self.streams());
        let samples = prompts.into_iter().flat_map(|prompt| std::iter::repeat_n(prompt, self.n()));
        Ok(samples
            .map(|input_ids| Request {
                rid: engine.new_rid(),
                input_ids,
                sampling: sampling.clone(),
                logprobs,
                stream,
            })
            .collect())
    }

    fn sampling(&self, max_new_tokens: Option<i64>) -> Sampling {
        let plain = Sampling::default();
        Sampling {
            max_new_tokens,
            min_new_tokens: self.min_tokens.unwrap_or(plain.min_new_tokens),
            temperature: self.temperature.unwrap_or(plain.temperature),
            top_p: self.top_p.unwrap_or(plain.top_p),
            top_k: self.top_k.unwrap_or(plain.top_k),
            min_p: self.min_p.unwrap_or(plain.min_p),
            frequency_penalty: self.frequency_penalty.unwrap_or(plain.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(plain.presence_penalty),
            stop: self.stop.clone().map(OneOrMany::into_vec).unwrap_or_default(),
            stop_token_ids: self.stop_token_ids.clone().unwrap_or_default(),
            ignore_eos: self.ignore_eos.unwrap_or(plain.ignore_eos),
            skip_special_tokens: self.skip_special_tokens.unwrap_or(plain.skip_special_tokens),
            no_stop_trim: self.no_stop_trim.unwrap_or(plain.no_stop_trim),
            seed: self.seed,
            stream_interval: None,
        }
    }

    /// Samples per prompt.
    pub fn n(&self) -> usize {
        self.n.unwrap_or(1)
    }

    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with the usage.
    pub fn includes_usage(&self) -> bool {
        self.stream_options.include_usage.unwrap_or(false)
    }

    /// Model name in the response.
    pub fn model(&self) -> String {
        self.model.clone().unwrap_or_else(|| "default".to_owned())
    }
}

impl Message {
    /// Message fields for the chat template, with the text parts joined.
    fn turn(&self) -> Result<BTreeMap<&'static str, String>, GenerateError> {
        let text = |content: Content| match content {
            Content::Text(text) => Ok(text),
            Content::Part { r#type, text: Some(text) } if r#type == "text" => Ok(text),
            Content::Part { r#type: kind, .. } => Err(invalid(&format!(
                "a message's content of type `{kind}` is not supported, only text."
            ))),
        };
        let parts = self.content.clone().map(OneOrMany::into_vec).unwrap_or_default();
        let content = parts.into_iter().map(text).collect::<Result<Vec<_>, _>>()?.join(" ");
        let name = self.name.iter().map(|name| ("name", name.clone()));
        Ok([("role", self.role.clone()), ("content", content)].into_iter().chain(name).collect())
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn invalid(message: &str) -> GenerateError {
    GenerateError::Invalid(message.to_owned())
}
