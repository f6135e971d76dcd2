//! Session of a try: samples the completions that an agent requests.
//!
//! ```text
//!  Planned ─▶ tokens since the parent ─▶ n completions side by side ─▶ nodes, response
//! ```

use futures::future::try_join_all;
use rljob_crds::data::PromptFormat;

use super::choice::{choice, token_logprobs};
use super::conversation::Node;
use super::progress::{Planned, Sampling};
use super::text_work::{SHORT, text_work};
use crate::data::Prompt;
use crate::input::InputError;
use crate::proxy::answer::{Choice, Completed};
use crate::proxy::error::ProxyError;
use crate::proxy::request::{Asked, CompletionRequest};
use crate::proxy::tools::ToolChoice;
use crate::rollout::episodes::Episodes;
use crate::rollout::request::Key;
use crate::rollout::sampler::{SampleRequest, Sampled};
use crate::text::{Message, PromptStyle, TextError};
use crate::work_error::WorkError;

/// Tokens before a completion, and their text without the chat template.
#[derive(Clone)]
struct Given {
    tokens: Vec<i64>,
    text: String,
}

/// What the completions of a session have in common.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    pub episodes: &'a Episodes<'a>,
    pub prompt: &'a Prompt,
    /// Key of the sample, temperature and longest completion.
    pub request: &'a SampleRequest,
}

impl Session<'_> {
    /// Samples the completions of a request.
    pub async fn complete(self, planned: Planned) -> Result<Sampling, WorkError> {
        if let Some(error) = self.request_error(&planned.request) {
            return Ok(Err(error));
        }
        let given = match self.given(&planned).await? {
            Ok(given) => given,
            Err(error) => return Ok(Err(ProxyError::Rejected(crate::error_line(&error)))),
        };
        if given.tokens.is_empty() {
            let param = planned.request.api.asked();
            return Ok(Err(ProxyError::parameter(param, "has no tokens")));
        }
        let (mut tokens, prompt) = planned.so_far.clone();
        tokens.extend(&given.tokens);
        let prompt = if planned.parent.is_some() { prompt } else { given.tokens.len() };
        let room = self.episodes.lengths.room(prompt, tokens.len().saturating_sub(prompt));
        let max_new_tokens = room.min(planned.request.max_tokens.unwrap_or(u32::MAX));
        if max_new_tokens == 0 {
            return Ok(Err(ProxyError::NoRoom { tokens: tokens.len() }));
        }
        let engine = planned.last.as_ref().map(|(_, engine)| engine.as_str());
        let samples = (0..planned.request.n).map(|choice| {
            self.sample(engine, &tokens, self.wanted(&planned, choice, max_new_tokens))
        });
        match try_join_all(samples).await {
            Ok(samples) => self.answer(planned, given, tokens, samples).await.map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Why the model cannot sample for a request.
    fn request_error(&self, request: &CompletionRequest) -> Option<ProxyError> {
        let vocabulary = self.episodes.sampler.vocabulary;
        if let Asked::Tokens(tokens) = &request.asked
            && let Some(id) = tokens.iter().find(|id| !(0..vocabulary).contains(*id))
        {
            let message = format!("token {id} is not below {vocabulary}, the model's vocabulary");
            return Some(ProxyError::parameter(request.api.asked(), message));
        }
        self.tools_error(request).map(|message| ProxyError::parameter("tools", message))
    }

    /// Why the model cannot use the tools of a request.
    fn tools_error(&self, request: &CompletionRequest) -> Option<&'static str> {
        if request.tools.is_empty() {
            None
        } else if self.episodes.data.style().format == PromptFormat::Text {
            Some("need a dataset with format Chat")
        } else if self.episodes.input.tool_call_format.is_none() {
            Some("the model's chat template does not describe tools in a known format")
        } else {
            None
        }
    }

    fn wanted(&self, planned: &Planned, choice: u32, max_new_tokens: u32) -> SampleRequest {
        let turn = planned.number.saturating_add(choice);
        SampleRequest {
            key: Key { turn, ..self.request.key },
            max_new_tokens,
            stop: planned.request.stop.clone(),
            ..self.request.clone()
        }
    }

    async fn sample(
        &self,
        engine: Option<&str>,
        tokens: &[i64],
        wanted: SampleRequest,
    ) -> Result<Sampled, ProxyError> {
        let Key { position, index, turn, .. } = wanted.key;
        if turn > 0 {
            tracing::debug!(position, index, turn, "sampling a turn");
        }
        let Episodes { sampler, weights, .. } = self.episodes;
        let sampled = sampler.sample_near(engine, *weights, tokens, &wanted).await;
        sampled.map_err(|refused| ProxyError::Rejected(refused.0))
    }

    /// Tokens since the parent.
    async fn given(&self, planned: &Planned) -> Result<Result<Given, TextError>, WorkError> {
        let request = &planned.request;
        let tokenizer = self.episodes.input.tokenizer.with_tools(request.tools.clone());
        let style = self.episodes.data.style().clone();
        let (messages, style) = match &request.asked {
            Asked::Messages(messages) => (messages.clone(), style),
            Asked::Text(text) => {
                let plain = PromptStyle { format: PromptFormat::Text, ..style };
                (vec![Message::user(text)], plain)
            }
            Asked::Tokens(tokens) => {
                let tokens = tokens.clone();
                let decode = move || tokenizer.decode(&tokens).map(|text| Given { tokens, text });
                return text_work(usize::MAX, decode).await;
            }
        };
        let tools = if request.tools.is_empty() { 0 } else { SHORT };
        let size = messages.iter().fold(tools, |size, message| {
            size.saturating_add(message.role.len()).saturating_add(message.content.len())
        });
        let completion = planned.last.as_ref().map(|(tokens, _)| tokens.clone());
        let encode = move || {
            let tokens = match completion {
                None => tokenizer.encode_messages(&messages, &style),
                Some(completion) => tokenizer.encode_continuation(&completion, &messages, &style),
            };
            let text = messages.iter().map(|message| message.content.as_str()).collect();
            tokens.map(|tokens| Given { tokens, text })
        };
        text_work(size, encode).await
    }

    /// The nodes and the response of sampled completions after `prompt`.
    async fn answer(
        self,
        planned: Planned,
        given: Given,
        prompt: Vec<i64>,
        samples: Vec<Sampled>,
    ) -> Result<(Vec<Node>, Completed), WorkError> {
        let Planned { number, parent, request, .. } = planned;
        let Key { position, index, .. } = self.request.key;
        let id = format!("{}-{position}-{index}-{number}", request.api.id_prefix());
        let details = request.details;
        let (samples, choices) = self.decode(&request, samples).await?;
        let nodes = (0..).zip(samples).zip(&choices);
        let nodes = nodes.map(|((choice, sampled), (answered, sampled_text))| Node {
            number: number.saturating_add(choice),
            parent,
            id: id.clone(),
            choice,
            asked: request.asked.clone(),
            instructed: request.context.instructed,
            tools: request.tools.clone(),
            text: answered.text.clone(),
            sampled_text: sampled_text.clone(),
            tool_calls: answered.tool_calls.clone(),
            given: given.tokens.clone(),
            given_text: given.text.clone(),
            sampled,
            reward: None,
        });
        let nodes = nodes.collect();
        let choices = choices.into_iter().map(|(choice, _)| choice).collect();
        let prompt_tokens = prompt.len();
        let prompt_ids = details.token_ids.then_some(prompt);
        Ok((nodes, Completed { id: id.clone(), prompt_tokens, prompt_ids, choices }))
    }

    /// Completions as choices, each with the whole completion as text.
    async fn decode(
        &self,
        request: &CompletionRequest,
        samples: Vec<Sampled>,
    ) -> Result<(Vec<Sampled>, Vec<(Choice, String)>), WorkError> {
        let stop = [&request.stop, self.episodes.sampler.stops.strings.as_slice()].concat();
        let tokenizer = self.episodes.input.tokenizer.clone();
        let has_calls = request.tool_choice == ToolChoice::Auto && !request.tools.is_empty();
        let format = self.episodes.input.tool_call_format.filter(|_| has_calls);
        let details = request.details;
        let size = samples.iter().map(|sampled| sampled.completion.tokens.len()).sum();
        let decode = move || {
            let choice = |sampled: &Sampled| {
                let (choice, text) = choice(&tokenizer, sampled, &stop, format)?;
                let logprobs = details.logprobs.then(|| token_logprobs(&tokenizer, sampled));
                let token_ids = details.token_ids.then(|| sampled.completion.tokens.clone());
                Ok::<_, TextError>((
                    Choice { logprobs: logprobs.transpose()?, token_ids, ..choice },
                    text,
                ))
            };
            let choices = samples.iter().map(choice).collect::<Result<Vec<_>, _>>();
            choices.map(|choices| (samples, choices))
        };
        Ok(text_work(size, decode).await?.map_err(InputError::from)?)
    }
}
