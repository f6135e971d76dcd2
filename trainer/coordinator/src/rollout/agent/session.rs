//! Session of a try: answers the calls of an agent and records its completions.
//!
//! ```text
//!  Chat ─▶ continued conversation? ─▶ tokens ─▶ n completions side by side ─▶ nodes, reply
//! ```

use futures::future::try_join_all;
use rljob_crds::data::PromptFormat;

use super::choice::{choice, token_logprobs};
use super::conversation::{Conversations, Node};
use super::text_work::{SHORT, text_work};
use crate::data::Prompt;
use crate::input::InputError;
use crate::proxy::answer::{Choice, Completed};
use crate::proxy::error::ProxyError;
use crate::proxy::request::{ChatRequest, CompletionId};
use crate::proxy::tools::ToolChoice;
use crate::proxy::{Call, Reply};
use crate::rollout::episodes::Episodes;
use crate::rollout::request::Key;
use crate::rollout::sampler::{SampleRequest, Sampled};
use crate::text::{Message, TextError};
use crate::work_error::WorkError;

/// What the completions of a session have in common.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    pub episodes: &'a Episodes<'a>,
    pub prompt: &'a Prompt,
    /// Key of the sample, temperature and longest completion.
    pub request: &'a SampleRequest,
}

/// Progress of a session.
#[derive(Debug, Default)]
pub struct Progress {
    pub conversations: Conversations,
    /// Completions that were requested.
    pub requested: u32,
    /// Reward of the session.
    pub reward: Option<f64>,
    /// Completion that ends the sample, if the agent selected one.
    pub selected: Option<usize>,
    /// Completion after which `maxTurns` or `maxTokens` rejected the last request.
    pub limited: Option<usize>,
}

/// Sampled completions and their response.
pub type Sampling = Result<(Vec<Node>, Completed), ProxyError>;

/// A request whose place in the session is known.
#[derive(Debug)]
pub struct Planned {
    /// Number of its first completion.
    number: u32,
    pub parent: Option<usize>,
    /// Tokens of the conversation so far, and length of its first prompt.
    so_far: (Vec<i64>, usize),
    /// Tokens of the last completion, and its engine.
    last: Option<(Vec<i64>, String)>,
    /// Messages since the parent.
    messages: Vec<Message>,
    request: ChatRequest,
}

impl Progress {
    /// Answers a call, or returns the plan of its completions. A client that has gone gets no
    /// answer.
    pub fn answer(&mut self, max_turns: u32, call: Call) -> Option<(Planned, Reply<Completed>)> {
        match call {
            Call::Chat(request, reply) => match self.plan(max_turns, request) {
                Ok(planned) => return Some((planned, reply)),
                Err(error) => drop(reply.send(Err(error))),
            },
            Call::Reward(reward, of, reply) => drop(reply.send(self.set_reward(reward, of))),
            Call::Finish(at, reply) => drop(reply.send(self.finish(at))),
        }
        None
    }

    /// Assigns the request its place.
    fn plan(&mut self, max_turns: u32, mut request: ChatRequest) -> Result<Planned, ProxyError> {
        let continued = self.conversations.continued(&request.messages, &request.tools);
        let number = self.requested;
        let requested = number.saturating_add(request.n);
        if requested > max_turns {
            self.limited = continued.map(|(index, _)| index);
            return Err(ProxyError::Turns(max_turns));
        }
        self.requested = requested;
        let messages = request.messages.split_off(continued.map_or(0, |(_, length)| length));
        let parent = continued.map(|(index, _)| index);
        let so_far = parent.map(|index| self.conversations.tokens(index)).unwrap_or_default();
        let last = parent
            .and_then(|index| self.conversations.get(index))
            .map(|node| (node.sampled.completion.tokens.clone(), node.sampled.engine.clone()));
        Ok(Planned { number, parent, so_far, last, messages, request })
    }

    /// Adds the completions of a request that continues `parent`.
    pub fn record(
        &mut self,
        parent: Option<usize>,
        sampling: Sampling,
    ) -> Result<Completed, ProxyError> {
        if matches!(sampling, Err(ProxyError::NoRoom { .. })) {
            self.limited = parent;
        }
        let (nodes, completed) = sampling?;
        for node in nodes {
            self.conversations.add(node);
        }
        Ok(completed)
    }

    /// Sets the reward of a completion or of the session.
    fn set_reward(&mut self, reward: f64, of: Option<CompletionId>) -> Result<(), ProxyError> {
        match of {
            None => self.reward = Some(reward),
            Some(of) => {
                let index = self.find(&of)?;
                if let Some(node) = self.conversations.get_mut(index) {
                    node.reward = Some(reward);
                }
            }
        }
        Ok(())
    }

    /// Selects the completion that ends the sample; by default the last one.
    fn finish(&mut self, at: Option<CompletionId>) -> Result<(), ProxyError> {
        self.selected = at.map(|at| self.find(&at)).transpose()?;
        Ok(())
    }

    fn find(&self, of: &CompletionId) -> Result<usize, ProxyError> {
        let found = self.conversations.find(&of.id, of.choice);
        found.ok_or_else(|| ProxyError::UnknownCompletion(format!("{}[{}]", of.id, of.choice)))
    }
}

impl Session<'_> {
    /// Samples the completions of a request.
    pub async fn complete(self, planned: Planned) -> Result<Sampling, WorkError> {
        if let Some(message) = self.tools_error(&planned.request) {
            return Ok(Err(ProxyError::parameter("tools", message)));
        }
        let given = match self.given(&planned).await? {
            Ok(given) => given,
            Err(error) => return Ok(Err(ProxyError::Rejected(crate::error_line(&error)))),
        };
        if given.is_empty() {
            return Ok(Err(ProxyError::parameter("messages", "have no tokens")));
        }
        let (mut tokens, prompt) = planned.so_far.clone();
        tokens.extend(&given);
        let prompt = if planned.parent.is_some() { prompt } else { given.len() };
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
            Ok(samples) => self.answer(planned, given, tokens.len(), samples).await.map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Why the model cannot use the tools of a request.
    fn tools_error(&self, request: &ChatRequest) -> Option<&'static str> {
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

    /// Tokens of the messages since the parent.
    async fn given(&self, planned: &Planned) -> Result<Result<Vec<i64>, TextError>, WorkError> {
        let (tokenizer, style) = (
            self.episodes.input.tokenizer.with_tools(planned.request.tools.clone()),
            self.episodes.data.style().clone(),
        );
        let messages = planned.messages.clone();
        let tools = if planned.request.tools.is_empty() { 0 } else { SHORT };
        let size = messages.iter().fold(tools, |size, message| {
            size.saturating_add(message.role.len()).saturating_add(message.content.len())
        });
        let completion = planned.last.as_ref().map(|(tokens, _)| tokens.clone());
        let encode = move || match completion {
            None => tokenizer.encode_messages(&messages, &style),
            Some(completion) => tokenizer.encode_continuation(&completion, &messages, &style),
        };
        text_work(size, encode).await
    }

    /// The nodes and the response of sampled completions.
    async fn answer(
        self,
        planned: Planned,
        given: Vec<i64>,
        prompt_tokens: usize,
        samples: Vec<Sampled>,
    ) -> Result<(Vec<Node>, Completed), WorkError> {
        let Key { position, index, .. } = self.request.key;
        let id = format!("chatcmpl-{position}-{index}-{}", planned.number);
        let stop = [&planned.request.stop, self.episodes.sampler.stops.strings.as_slice()].concat();
        let tokenizer = self.episodes.input.tokenizer.clone();
        let has_calls =
            planned.request.tool_choice == ToolChoice::Auto && !planned.request.tools.is_empty();
        let format = self.episodes.input.tool_call_format.filter(|_| has_calls);
        let logprobs = planned.request.logprobs;
        let size = samples.iter().map(|sampled| sampled.completion.tokens.len()).sum();
        let decode = move || {
            let choice = |sampled: &Sampled| {
                let choice = choice(&tokenizer, sampled, &stop, format)?;
                let logprobs = logprobs.then(|| token_logprobs(&tokenizer, sampled)).transpose()?;
                Ok::<_, TextError>(Choice { logprobs, ..choice })
            };
            let choices = samples.iter().map(choice).collect::<Result<Vec<_>, _>>();
            choices.map(|choices| (samples, choices))
        };
        let (samples, choices) = text_work(size, decode).await?.map_err(InputError::from)?;
        let nodes = (0..).zip(samples).zip(&choices).map(|((choice, sampled), answered)| Node {
            number: planned.number.saturating_add(choice),
            parent: planned.parent,
            id: id.clone(),
            choice,
            messages: planned.messages.clone(),
            tools: planned.request.tools.clone(),
            text: answered.text.clone(),
            tool_calls: answered.tool_calls.clone(),
            given: given.clone(),
            sampled,
            reward: None,
        });
        Ok((nodes.collect(), Completed { id, prompt_tokens, choices }))
    }
}
