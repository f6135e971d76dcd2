//! Turns of a sample: score, append what follows, sample on, until the workflow ends the sample.
//!
//! ```text
//!  environment: reset ─▶ prompt and first observation ─▶ first completion
//!  first completion ─▶ score ─▶ workflow ─┬─ end ─▶ Episode
//!                        ▲                └─ messages ─▶ tokens, if they leave room ─┐
//!                        └── completion ◀── same engine, exact tokens so far ◀───────┘
//! ```

use std::sync::Arc;

use super::episode::{Episode, Rejected, Turn};
use super::request::Key;
use super::sampler::{RejectedEverywhere, SampleRequest, Sampled, Sampler};
use super::score::{Scored, Verdict, score, unscored};
use crate::data::{Dataset, Prompt};
use crate::engines::Weights;
use crate::input::{Input, InputError};
use crate::reward::RewardError;
use crate::telemetry::ToolCalls;
use crate::text::Message;
use crate::work_error::WorkError;
use crate::workflow::{Environment, EnvironmentSession, Lengths, Next, ToolSet, ToolTurn};

/// Settings that the episodes of a group share.
pub struct Episodes<'a> {
    pub input: &'a Arc<Input>,
    /// Data of the prompt.
    pub data: &'a Dataset,
    pub sampler: &'a Sampler<'a>,
    /// Weights that may sample the completions.
    pub weights: Weights,
    pub lengths: Lengths,
    pub tool_calls: &'a ToolCalls,
}

/// The reward of a completion, if it has one in any case, and the messages before the next one.
type Answer = (Option<Scored>, Next<Vec<Message>>);

/// Tokens between two completions.
struct Between {
    tokens: Vec<i64>,
    text: String,
    /// Maximum length of the next completion.
    max_new_tokens: u32,
}

/// A turn of a sample.
#[derive(Clone, Copy)]
struct TurnAt<'a, 'e> {
    key: Key,
    /// From 1.
    number: u32,
    /// The session of the sample, if the workflow is an environment.
    environment: Option<&'a EnvironmentSession<'e>>,
}

impl Episodes<'_> {
    /// An episode of the environment, whose first observation is part of the prompt.
    pub async fn in_environment(
        &self,
        environment: &Environment,
        prompt: &Prompt,
        request: &SampleRequest,
    ) -> Result<Episode, WorkError> {
        let session = environment.session(request.key);
        let reset = session.reset(prompt, request.key.seed(self.sampler.run_seed, 0)).await;
        let observed = match reset {
            Ok(None) => None,
            Ok(Some(observation)) => Some(self.data.observed(prompt.position, &observation)),
            Err(error @ RewardError::Rejected { .. }) => {
                return Ok(Episode::rejected(Rejected::Verifier(None, error)));
            }
            Err(error) => return Err(WorkError::Verifier(error.of_row(prompt.row))),
        };
        let observed = observed.transpose().map_err(InputError::from)?;
        let prompt = observed.as_ref().unwrap_or(prompt);
        let (tokens, context) = (prompt.tokens.len(), self.lengths.context);
        let max_new_tokens = self.lengths.room(tokens, 0);
        if max_new_tokens == 0 {
            return Ok(Episode::rejected(Rejected::Observation { tokens, context }));
        }
        let request = SampleRequest { max_new_tokens, ..request.clone() };
        let first = self.sampler.sample_near(None, self.weights, &prompt.tokens, &request).await;
        self.finish(prompt, &request, first, Some(&session)).await
    }

    /// Continues after the first completion until the sample ends; `environment` is its session, if
    /// the workflow is one.
    pub async fn finish(
        &self,
        prompt: &Prompt,
        request: &SampleRequest,
        first: Result<Sampled, RejectedEverywhere>,
        environment: Option<&EnvironmentSession<'_>>,
    ) -> Result<Episode, WorkError> {
        let rejected = |refused: RejectedEverywhere| InputError::PromptRejected {
            row: prompt.row,
            message: refused.0,
        };
        let mut sampled = first.map_err(rejected)?;
        let mut tokens = prompt.tokens.clone();
        let (mut given, mut given_text) = (prompt.tokens.clone(), prompt.text.clone());
        let mut turns = Vec::new();
        loop {
            let number = u32::try_from(turns.len()).unwrap_or(u32::MAX).saturating_add(1);
            tokens.extend(&sampled.completion.tokens);
            let at = TurnAt { key: request.key, number, environment };
            let (scored, between) = match self.turn(prompt, at, &sampled, tokens.len()).await? {
                Ok(turn) => turn,
                Err(error) => {
                    let rejected = Some(Rejected::Verifier(Some(Box::new(sampled)), error));
                    return Ok(Episode { turns, ended_by_limit: false, rejected });
                }
            };
            let turn = Turn { given, given_text, sampled, scored };
            let engine = turn.sampled.engine.clone();
            turns.push(turn);
            let ended_by_limit = matches!(between, Next::Limit);
            let Next::Turn(between) = between else {
                return Ok(Episode { turns, ended_by_limit, rejected: None });
            };
            tokens.extend(&between.tokens);
            let position = prompt.position;
            tracing::debug!(position, index = request.key.index, turn = number, "sampling a turn");
            let request = SampleRequest {
                key: Key { turn: number, ..request.key },
                max_new_tokens: between.max_new_tokens,
                ..request.clone()
            };
            let next =
                self.sampler.sample_near(Some(&engine), self.weights, &tokens, &request).await;
            sampled = next.map_err(rejected)?;
            (given, given_text) = (between.tokens, between.text);
        }
    }

    /// The reward of a turn, which ends at `so_far` tokens, and what follows it. The inner error
    /// rejects the sample.
    async fn turn(
        &self,
        prompt: &Prompt,
        at: TurnAt<'_, '_>,
        sampled: &Sampled,
        so_far: usize,
    ) -> Result<Result<(Scored, Next<Between>), RewardError>, WorkError> {
        let (scored, messages) = match self.answer(prompt, at, sampled).await? {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        let between = match messages {
            Next::Turn(messages) => self.between(prompt, sampled, messages, so_far).await?,
            Next::End => Next::End,
            Next::Limit => Next::Limit,
        };
        let tokens = || sampled.completion.tokens.clone();
        let scored = match scored {
            Some(scored) => scored,
            None if matches!(between, Next::Turn(_)) => unscored(self.input, tokens()).await?,
            None => match score(self.input, prompt, tokens()).await? {
                Verdict::Scored(scored) => scored,
                Verdict::Rejected(error) => return Ok(Err(error)),
            },
        };
        Ok(Ok((scored, between)))
    }

    /// The answer of the workflow to a turn. The inner error rejects the sample.
    async fn answer(
        &self,
        prompt: &Prompt,
        at: TurnAt<'_, '_>,
        sampled: &Sampled,
    ) -> Result<Result<Answer, RewardError>, WorkError> {
        let TurnAt { key, number, environment } = at;
        if let Some(tools) = self.input.workflow.tools() {
            let turn = ToolTurn { key, number, offered: prompt.tools.as_ref() };
            return self.results(prompt, tools, turn, sampled).await;
        }
        let scored = match score(self.input, prompt, sampled.completion.tokens.clone()).await? {
            Verdict::Scored(scored) => scored,
            Verdict::Rejected(error) => return Ok(Err(error)),
        };
        let Some(environment) = environment else {
            let workflow = &self.input.workflow;
            let messages = workflow.messages(prompt, number, &scored.text, &scored.reward);
            return Ok(Ok((Some(scored), messages.map_err(InputError::from)?)));
        };
        match environment.step(number, &scored.text).await {
            Ok(step) => {
                let reward = step.added_to(scored.reward);
                Ok(Ok((Some(Scored { reward, ..scored }), step.next)))
            }
            Err(rejected @ RewardError::Rejected { .. }) => Ok(Err(rejected)),
            Err(error) => Err(WorkError::Verifier(error.of_row(prompt.row))),
        }
    }

    /// The results of the calls of a turn. Only the last turn has a reward.
    async fn results(
        &self,
        prompt: &Prompt,
        tools: &ToolSet,
        turn: ToolTurn<'_>,
        sampled: &Sampled,
    ) -> Result<Result<Answer, RewardError>, WorkError> {
        let calls = match self.input.tool_call_format {
            None => Vec::new(),
            Some(format) => {
                let (input, tokens) = (Arc::clone(self.input), sampled.completion.tokens.clone());
                let parse = move || input.tokenizer.parse_tool_calls(format, &tokens);
                tokio::task::spawn_blocking(parse).await?.map_err(InputError::from)?.calls
            }
        };
        if calls.is_empty() {
            return Ok(Ok((None, Next::End)));
        }
        if !tools.may_continue(turn.number) {
            return Ok(Ok((None, Next::Limit)));
        }
        match tools.execute(turn, &calls, self.tool_calls).await {
            Ok(messages) => Ok(Ok((None, Next::Turn(messages)))),
            Err(rejected @ RewardError::Rejected { .. }) => Ok(Err(rejected)),
            Err(error) => Err(WorkError::Verifier(error.of_row(prompt.row))),
        }
    }

    /// What follows a completion that ends at `so_far` tokens, if there is room for more.
    async fn between(
        &self,
        prompt: &Prompt,
        sampled: &Sampled,
        messages: Vec<Message>,
        so_far: usize,
    ) -> Result<Next<Between>, WorkError> {
        let text = messages.iter().map(|message| message.content.as_str()).collect();
        let tokens = self.tokens(sampled.completion.tokens.clone(), messages).await?;
        let later = so_far.saturating_sub(prompt.tokens.len()).saturating_add(tokens.len());
        let max_new_tokens = self.lengths.room(prompt.tokens.len(), later);
        Ok(Next::unless(false, max_new_tokens == 0, || Between { tokens, text, max_new_tokens }))
    }

    async fn tokens(
        &self,
        completion: Vec<i64>,
        messages: Vec<Message>,
    ) -> Result<Vec<i64>, WorkError> {
        let (tokenizer, style) = (self.input.tokenizer.clone(), self.data.style().clone());
        let encode = move || tokenizer.encode_continuation(&completion, &messages, &style);
        let tokens = tokio::task::spawn_blocking(encode).await?;
        Ok(tokens.map_err(InputError::from)?)
    }
}
