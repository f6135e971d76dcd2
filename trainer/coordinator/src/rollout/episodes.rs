//! Turns of a sample after the first: score, append what follows, sample on, until the workflow
//! ends the sample.
//!
//! ```text
//!  first completion ─▶ score ─▶ workflow ─┬─ end ─▶ Episode
//!                        ▲                └─ messages ─▶ tokens, if they leave room ─┐
//!                        └── completion ◀── same engine, exact tokens so far ◀───────┘
//! ```

use std::sync::Arc;

use super::episode::{Episode, Rejected, Turn};
use super::request::Key;
use super::sampler::{RejectedEverywhere, SampleRequest, Sampled, Sampler};
use super::score::{Verdict, score};
use crate::data::{Dataset, Prompt};
use crate::engines::Weights;
use crate::input::{Input, InputError};
use crate::text::Message;
use crate::work_error::WorkError;
use crate::workflow::Lengths;

/// Settings that the episodes of a group share.
pub struct Episodes<'a> {
    pub input: &'a Arc<Input>,
    /// Data of the prompt.
    pub data: &'a Dataset,
    pub sampler: &'a Sampler<'a>,
    /// Weights that may sample the completions.
    pub weights: Weights,
    pub lengths: Lengths,
}

/// Tokens between two completions.
struct Between {
    tokens: Vec<i64>,
    text: String,
    /// Maximum length of the next completion.
    max_new_tokens: u32,
}

impl Episodes<'_> {
    /// Continues after the first completion until the sample ends.
    pub async fn finish(
        &self,
        prompt: &Prompt,
        request: &SampleRequest,
        first: Result<Sampled, RejectedEverywhere>,
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
            let completion = sampled.completion.tokens.clone();
            let scored = match score(self.input, prompt, completion).await? {
                Verdict::Scored(scored) => scored,
                Verdict::Rejected(error) => {
                    return Ok(Episode {
                        turns,
                        rejected: Some(Rejected::Verifier(Box::new(sampled), error)),
                    });
                }
            };
            tokens.extend(&sampled.completion.tokens);
            let turn = Turn { given, given_text, sampled, scored };
            let number = u32::try_from(turns.len()).unwrap_or(u32::MAX).saturating_add(1);
            let between = self.between(prompt, number, &turn, tokens.len()).await?;
            let engine = turn.sampled.engine.clone();
            turns.push(turn);
            let Some(between) = between else { return Ok(Episode { turns, rejected: None }) };
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

    /// What follows a turn that ends at `so_far` tokens; `None` if the sample ends.
    async fn between(
        &self,
        prompt: &Prompt,
        number: u32,
        turn: &Turn,
        so_far: usize,
    ) -> Result<Option<Between>, WorkError> {
        let Turn { sampled, scored, .. } = turn;
        let messages = self.input.workflow.messages(prompt, number, &scored.text, &scored.reward);
        let Some(messages) = messages.map_err(InputError::from)? else { return Ok(None) };
        let text = messages.iter().map(|message| message.content.as_str()).collect();
        let tokens = self.tokens(sampled.completion.tokens.clone(), messages).await?;
        let later = so_far.saturating_sub(prompt.tokens.len()).saturating_add(tokens.len());
        let max_new_tokens = self.lengths.room(prompt.tokens.len(), later);
        Ok((max_new_tokens > 0).then_some(Between { tokens, text, max_new_tokens }))
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
