//! Session of a try: samples the completions that an agent requests.
//!
//! ```text
//!  Planned ─▶ tokens since the parent ─▶ n completions side by side ─▶ nodes, response
//! ```

use futures::future::{pending, try_join_all};
use rljob_crds::data::PromptFormat;
use tokio::sync::watch;

use super::choice::{choice, token_logprobs};
use super::conversation::Node;
use super::partial::{PartialChoice, Reading};
use super::progress::{Planned, Sampling};
use super::text_work::{SHORT, text_work};
use crate::data::Prompt;
use crate::engines::live::Live;
use crate::input::InputError;
use crate::proxy::answer::{Choice, Completed};
use crate::proxy::error::ProxyError;
use crate::proxy::request::{Asked, CompletionRequest};
use crate::proxy::tools::ToolChoice;
use crate::rollout::completion::Completion;
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
    /// Samples the completions of a request, and publishes them meanwhile if it is streamed.
    pub async fn complete(
        self,
        planned: Planned,
        partial: &watch::Sender<Completed>,
    ) -> Result<Sampling, WorkError> {
        let (given, tokens, max_new_tokens) = match self.prompt(&planned).await? {
            Ok(prompt) => prompt,
            Err(error) => return Ok(Err(error)),
        };
        let (reading, stream) = (self.reading(&planned.request), planned.request.stream);
        if stream {
            partial.send_replace(self.begun(&planned, &tokens));
        }
        let engine = planned.last.as_ref().map(|(_, engine)| engine.as_str());
        let samples = (0..planned.request.n).map(|choice| {
            let own = || PartialChoice::new(reading.clone(), partial, choice as usize);
            let wanted = self.wanted(&planned, choice, max_new_tokens);
            self.sample(engine, &tokens, wanted, stream.then(own))
        });
        let samples = match try_join_all(samples).await {
            Ok(samples) => samples,
            Err(error) => return Ok(Err(error)),
        };
        let (nodes, completed) = self.answer(planned, given, tokens, reading, samples).await?;
        let begins = completed.begins_with(&partial.borrow());
        Ok(if begins { Ok((nodes, completed)) } else { Err(ProxyError::Changed) })
    }

    /// Tokens since the parent, all tokens before the completions, and their maximum length.
    async fn prompt(
        &self,
        planned: &Planned,
    ) -> Result<Result<(Given, Vec<i64>, u32), ProxyError>, WorkError> {
        if let Some(error) = self.request_error(&planned.request) {
            return Ok(Err(error));
        }
        let given = match self.given(planned).await? {
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
        Ok(Ok((given, tokens, max_new_tokens)))
    }

    /// How the completions of a request are read.
    fn reading(&self, request: &CompletionRequest) -> Reading {
        let has_calls = request.tool_choice == ToolChoice::Auto && !request.tools.is_empty();
        Reading {
            tokenizer: self.episodes.input.tokenizer.clone(),
            stop: [&request.stop, self.episodes.sampler.stops.strings.as_slice()].concat(),
            format: self.episodes.input.tool_call_format.filter(|_| has_calls),
            details: request.details,
        }
    }

    /// The completions of a request before they are sampled.
    fn begun(&self, planned: &Planned, prompt: &[i64]) -> Completed {
        let details = planned.request.details;
        let choice = Choice {
            logprobs: details.logprobs.then(Vec::new),
            token_ids: details.token_ids.then(Vec::new),
            ..Choice::default()
        };
        Completed {
            id: self.id(planned),
            prompt_tokens: prompt.len(),
            prompt_ids: details.token_ids.then(|| prompt.to_vec()),
            choices: vec![choice; planned.request.n as usize],
        }
    }

    fn id(&self, planned: &Planned) -> String {
        let Key { position, index, .. } = self.request.key;
        format!("{}-{position}-{index}-{}", planned.request.api.id_prefix(), planned.number)
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
        mut wanted: SampleRequest,
        partial: Option<PartialChoice<'_>>,
    ) -> Result<Sampled, ProxyError> {
        let Key { position, index, turn, .. } = wanted.key;
        if turn > 0 {
            tracing::debug!(position, index, turn, "sampling a turn");
        }
        let Episodes { sampler, weights, .. } = self.episodes;
        let published = partial.map(|partial| {
            let (live, tokens) = Live::new();
            wanted.live = Some(live);
            partial.publish(tokens)
        });
        let published = async {
            match published {
                Some(published) => published.await,
                None => pending().await,
            }
        };
        let sampled = tokio::select! {
            sampled = sampler.sample_near(engine, *weights, tokens, &wanted) => sampled,
            never = published => match never {},
        };
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
        reading: Reading,
        samples: Vec<Sampled>,
    ) -> Result<(Vec<Node>, Completed), WorkError> {
        let id = self.id(&planned);
        let Planned { number, parent, request, .. } = planned;
        let details = request.details;
        let (samples, choices) = decode(reading, samples).await?;
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
}

/// Completions as choices, each with the whole completion as text.
async fn decode(
    reading: Reading,
    samples: Vec<Sampled>,
) -> Result<(Vec<Sampled>, Vec<(Choice, String)>), WorkError> {
    let size = samples.iter().map(|sampled| sampled.completion.tokens.len()).sum();
    let decode = move || {
        let Reading { tokenizer, stop, format, details } = reading;
        let choice = |sampled: &Sampled| {
            let (choice, text) = choice(&tokenizer, sampled, &stop, format)?;
            let Completion { tokens, logprobs, .. } = &sampled.completion;
            let texts = details.logprobs.then(|| token_logprobs(&tokenizer, tokens, logprobs));
            let token_ids = details.token_ids.then(|| tokens.clone());
            Ok::<_, TextError>((Choice { logprobs: texts.transpose()?, token_ids, ..choice }, text))
        };
        let choices = samples.iter().map(choice).collect::<Result<Vec<_>, _>>();
        choices.map(|choices| (samples, choices))
    };
    Ok(text_work(size, decode).await?.map_err(InputError::from)?)
}
