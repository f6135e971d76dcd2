//! Request body of `/generate` in all forms: one or many prompts, text or tokens, shared or
//! individual parameters.

use std::time::Duration;

use rljob_text::TextTokenizer;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::Engine;
use crate::request::{GenerateError, Logprobs, Request, Sampling};

/// Default number of completion tokens.
const MAX_NEW_TOKENS: i64 = 128;

/// Maximum number of requests per body.
pub const REQUESTS: usize = 4096;

/// A shared value, or one per prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for OneOrMany<T> {
    /// An untagged enum would hide the error of the intended variant.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Array(many) => many
                .into_iter()
                .map(serde_json::from_value)
                .collect::<Result<_, _>>()
                .map(Self::Many),
            one => serde_json::from_value(one).map(Self::One),
        }
        .map_err(D::Error::custom)
    }
}

impl<T: Clone> OneOrMany<T> {
    fn at(&self, index: usize) -> Option<T> {
        match self {
            Self::One(one) => Some(one.clone()),
            Self::Many(many) => many.get(index).cloned(),
        }
    }

    fn many(&self) -> Option<usize> {
        match self {
            Self::One(_) => None,
            Self::Many(many) => Some(many.len()),
        }
    }

    pub fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// Token ids of one or many prompts.
#[derive(Clone, Debug, PartialEq)]
pub enum InputIds {
    One(Vec<i64>),
    Many(Vec<Vec<i64>>),
}

impl<'de> Deserialize<'de> for InputIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let nested = value.get(0).is_some_and(Value::is_array);
        if nested {
            serde_json::from_value(value).map(Self::Many)
        } else {
            serde_json::from_value(value).map(Self::One)
        }
        .map_err(D::Error::custom)
    }
}

/// Fields that this engine does not support are errors; SGLang supports more.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GenerateInput {
    rid: Option<OneOrMany<String>>,
    text: Option<OneOrMany<String>>,
    input_ids: Option<InputIds>,
    sampling_params: Option<OneOrMany<SamplingInput>>,
    return_logprob: Option<OneOrMany<bool>>,
    logprob_start_len: Option<OneOrMany<i64>>,
    top_logprobs_num: Option<OneOrMany<usize>>,
    return_text_in_logprobs: bool,
    /// Respond with server-sent events.
    pub stream: bool,
}

/// `sampling_params`; missing and null values have SGLang's defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SamplingInput {
    n: Option<usize>,
    max_new_tokens: Option<i64>,
    min_new_tokens: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    stop: Option<OneOrMany<String>>,
    stop_token_ids: Option<Vec<i64>>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    no_stop_trim: Option<bool>,
    sampling_seed: Option<u64>,
    stream_interval: Option<i64>,
}

impl SamplingInput {
    /// `room` is the maximum length of a completion without a limit.
    fn sampling(self, room: usize) -> Sampling {
        let plain = Sampling::default();
        let default_length = MAX_NEW_TOKENS.min(room as i64);
        Sampling {
            max_new_tokens: Some(self.max_new_tokens.unwrap_or(default_length)),
            min_new_tokens: self.min_new_tokens.unwrap_or(plain.min_new_tokens),
            temperature: self.temperature.unwrap_or(plain.temperature),
            top_p: self.top_p.unwrap_or(plain.top_p),
            top_k: self.top_k.unwrap_or(plain.top_k),
            min_p: self.min_p.unwrap_or(plain.min_p),
            frequency_penalty: self.frequency_penalty.unwrap_or(plain.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(plain.presence_penalty),
            stop: self.stop.map(OneOrMany::into_vec).unwrap_or_default(),
            stop_token_ids: self.stop_token_ids.unwrap_or_default(),
            ignore_eos: self.ignore_eos.unwrap_or(plain.ignore_eos),
            skip_special_tokens: self.skip_special_tokens.unwrap_or(plain.skip_special_tokens),
            no_stop_trim: self.no_stop_trim.unwrap_or(plain.no_stop_trim),
            seed: self.sampling_seed,
            stream_interval: self.stream_interval,
        }
    }
}

/// The requests of a body, and whether the response is a list.
pub struct Requests {
    /// Samples of one prompt are adjacent.
    pub requests: Vec<Request>,
    pub is_list: bool,
}

impl GenerateInput {
    pub fn requests(self, engine: &Engine) -> Result<Requests, GenerateError> {
        let (prompts, is_batch) =
            prompts(self.input_ids.as_ref(), self.text.as_ref(), engine.tokenizer.as_ref())?;
        let samples = self.samples_of_each(prompts.len())?;
        let is_list = is_batch || samples > 1;
        for (name, length) in self.lists() {
            if length.is_some_and(|length| !is_batch || length != prompts.len()) {
                return Err(invalid(&format!(
                    "The length of {name} should be equal to the batch size."
                )));
            }
        }
        let mut requests = Vec::with_capacity(prompts.len().saturating_mul(samples));
        for (index, prompt) in prompts.into_iter().enumerate() {
            let room = engine.limits.room(prompt.len());
            let sampling = self
                .sampling_params
                .as_ref()
                .and_then(|params| params.at(index))
                .unwrap_or_default()
                .sampling(room);
            for _ in 0..samples {
                let rid = self.rid_of(index, is_batch, samples).unwrap_or_else(|| engine.new_rid());
                let (sampling, logprobs) = (sampling.clone(), self.logprobs_of(index));
                requests.push(Request {
                    rid,
                    input_ids: prompt.clone(),
                    sampling,
                    logprobs,
                    stream: self.stream,
                });
            }
        }
        Ok(Requests { requests, is_list })
    }

    fn samples_of_each(&self, prompts: usize) -> Result<usize, GenerateError> {
        let counts: Vec<usize> = self
            .sampling_params
            .clone()
            .map(OneOrMany::into_vec)
            .unwrap_or_default()
            .iter()
            .map(|params| params.n.unwrap_or(1))
            .collect();
        let samples = counts.first().copied().unwrap_or(1);
        if counts.iter().any(|count| *count != samples) {
            return Err(invalid(
                "The parallel_sample_num should be the same for all samples in sample params.",
            ));
        }
        let all = samples.saturating_mul(prompts);
        if prompts == 0 || samples == 0 || all > REQUESTS {
            return Err(invalid(&format!(
                "A request must ask for 1 to {REQUESTS} completions, got {all}."
            )));
        }
        Ok(samples)
    }

    fn lists(&self) -> [(&'static str, Option<usize>); 5] {
        let of = |length: Option<Option<usize>>| length.flatten();
        [
            ("rid", of(self.rid.as_ref().map(OneOrMany::many))),
            ("sampling_params", of(self.sampling_params.as_ref().map(OneOrMany::many))),
            ("return_logprob", of(self.return_logprob.as_ref().map(OneOrMany::many))),
            ("logprob_start_len", of(self.logprob_start_len.as_ref().map(OneOrMany::many))),
            ("top_logprobs_num", of(self.top_logprobs_num.as_ref().map(OneOrMany::many))),
        ]
    }

    /// SGLang's rule: a single id of a batch is numbered, and samples of one prompt get new ids.
    fn rid_of(&self, index: usize, is_batch: bool, samples: usize) -> Option<String> {
        let rid = self.rid.as_ref().filter(|_| samples == 1)?;
        match rid {
            OneOrMany::One(rid) if is_batch => Some(format!("{rid}_{index}")),
            rid => rid.at(index),
        }
    }

    fn logprobs_of(&self, index: usize) -> Option<Logprobs> {
        let wanted = self.return_logprob.as_ref()?.at(index)?;
        let start = self
            .logprob_start_len
            .as_ref()
            .and_then(|start| start.at(index))
            .and_then(|start| usize::try_from(start).ok());
        let top = self.top_logprobs_num.as_ref().and_then(|top| top.at(index)).unwrap_or(0);
        wanted.then_some(Logprobs { start, top, text: self.return_text_in_logprobs })
    }
}

/// Returns the token ids of each prompt, and whether the body had a list.
pub fn prompts(
    input_ids: Option<&InputIds>,
    text: Option<&OneOrMany<String>>,
    tokenizer: Option<&TextTokenizer>,
) -> Result<(Vec<Vec<i64>>, bool), GenerateError> {
    match (input_ids, text) {
        (Some(InputIds::One(ids)), _) => Ok((vec![ids.clone()], false)),
        (Some(InputIds::Many(many)), _) => Ok((many.clone(), true)),
        (None, Some(text)) => {
            let texts = text.clone().into_vec();
            let tokens = texts.iter().map(|text| encode(tokenizer, text));
            Ok((tokens.collect::<Result<_, _>>()?, text.many().is_some()))
        }
        (None, None) => Err(invalid("Either text, input_ids or input_embeds should be provided.")),
    }
}

/// Time for the tokens of the prompts of a body: tokenizers match regular expressions that may
/// backtrack.
const TOKENIZE_LIMIT: Duration = Duration::from_secs(60);

/// Tokenizes prompts on a thread that may block.
pub async fn off_thread<T: Send + 'static>(
    engine: &Engine,
    requests: impl FnOnce(&Engine) -> Result<T, GenerateError> + Send + 'static,
) -> Result<T, GenerateError> {
    let engine = engine.clone();
    let tokenized = tokio::task::spawn_blocking(move || requests(&engine));
    match tokio::time::timeout(TOKENIZE_LIMIT, tokenized).await {
        Ok(Ok(requests)) => requests,
        Ok(Err(error)) => Err(GenerateError::Internal(error.to_string())),
        Err(_) => Err(invalid(&format!(
            "The tokens of the prompt take longer than {} s.",
            TOKENIZE_LIMIT.as_secs()
        ))),
    }
}

/// Encodes a prompt as transformers does.
pub fn encode(tokenizer: Option<&TextTokenizer>, text: &str) -> Result<Vec<i64>, GenerateError> {
    let Some(tokenizer) = tokenizer.filter(|_| !text.is_empty()) else {
        return Err(invalid("texts cannot be empty and tokenizer must be initialized"));
    };
    tokenizer.encode_with_special(text).map_err(|error| invalid(&error.to_string()))
}

fn invalid(message: &str) -> GenerateError {
    GenerateError::Invalid(message.to_owned())
}
