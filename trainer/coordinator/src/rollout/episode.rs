//! Episode: the turns of one sample, and the sample that they make. Pure.

use rljob_protocol::sglang::SamplingParams;
use serde_json::{Map, Value, json};

use super::agent::failure::AgentFailure;
use super::sampler::Sampled;
use super::score::Scored;
use crate::data::Prompt;
use crate::persistence::journal::{DETAILS, LIMIT, STOP, Sample, Segment};
use crate::reward::RewardError;
use crate::workflow::Workflow;

/// A completion with the tokens before it.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The prompt, or what follows the previous turn.
    pub given: Vec<i64>,
    /// `given` as text, without the chat template.
    pub given_text: String,
    pub sampled: Sampled,
    pub scored: Scored,
}

/// The turns of a sample.
#[derive(Debug)]
pub struct Episode {
    pub turns: Vec<Turn>,
    /// Whether `maxTurns` or `maxTokens` ended the sample.
    pub ended_by_limit: bool,
    /// Why the sample is dropped, if it is.
    pub rejected: Option<Rejected>,
}

/// Why a sample is dropped.
#[derive(Debug)]
pub enum Rejected {
    /// The verifier failed for a further completion, or an environment before the first one.
    Verifier(Option<Box<Sampled>>, RewardError),
    /// The program of the agent failed.
    Agent(AgentFailure),
    /// The first observation leaves no token for a completion.
    Observation { tokens: usize, context: u32 },
}

impl Rejected {
    /// Value of the label `cause` of the metric of rejected samples.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Verifier(_, error) => error.kind(),
            Self::Agent(failure) => failure.kind(),
            Self::Observation { .. } => "observation",
        }
    }

    /// The error in one line.
    pub fn line(&self) -> String {
        match self {
            Self::Verifier(_, error) => crate::error_line(error),
            Self::Agent(failure) => crate::error_line(failure),
            Self::Observation { tokens, context } => format!(
                "the prompt with the first observation of the environment has {tokens} tokens, \
                 which leaves none for a completion: the context of the model is {context}"
            ),
        }
    }
}

impl Episode {
    /// An episode without completions.
    pub fn rejected(cause: Rejected) -> Self {
        Self { turns: Vec::new(), ended_by_limit: false, rejected: Some(cause) }
    }

    /// All completions.
    pub fn completions(&self) -> impl Iterator<Item = &Sampled> {
        let rejected = self.rejected.iter().filter_map(|rejected| match rejected {
            Rejected::Verifier(sampled, _) => sampled.as_deref(),
            Rejected::Agent(_) | Rejected::Observation { .. } => None,
        });
        self.turns.iter().map(|turn| &turn.sampled).chain(rejected)
    }

    /// The reward without discount.
    pub fn undiscounted(&self, workflow: &Workflow) -> f64 {
        let rewards: Vec<f64> = self.turns.iter().map(|turn| turn.scored.reward.value).collect();
        workflow.undiscounted(&rewards)
    }

    /// The completions as text, with what was given between them.
    pub fn text(&self) -> String {
        let texts = self.turns.iter().flat_map(|turn| [&turn.given_text, &turn.scored.text]);
        texts.skip(1).map(String::as_str).collect()
    }

    /// The sample of an episode with at least one turn.
    ///
    /// # Errors
    /// The sampling parameters are not JSON.
    pub fn into_sample(
        self,
        prompt: &Prompt,
        index: u32,
        workflow: &Workflow,
    ) -> serde_json::Result<Option<Sample>> {
        let rewards: Vec<f64> = self.turns.iter().map(|turn| turn.scored.reward.value).collect();
        let turn_rewards = workflow.turn_rewards(&rewards);
        let parameters: Vec<&SamplingParams> =
            self.turns.iter().map(|turn| &turn.sampled.parameters).collect();
        let sampling = match parameters.as_slice() {
            [only] => serde_json::to_value(only),
            several => serde_json::to_value(several),
        }?;
        let mut metadata = Map::new();
        if self.turns.len() > 1 {
            metadata.insert("turns".to_owned(), self.turns.iter().map(facts).collect());
        }
        let Some(last) = self.turns.last() else { return Ok(None) };
        let reward = last.scored.reward.clone();
        if let Some(answer) = reward.answer {
            metadata.insert("answer".to_owned(), answer.into());
        }
        if !reward.details.is_empty() {
            metadata.insert(DETAILS.to_owned(), reward.details.into_iter().collect());
        }
        Ok(Some(Sample {
            position: prompt.position,
            index,
            row: prompt.row,
            finish_reason: match finish_reason(&last.sampled) {
                STOP if self.ended_by_limit => LIMIT.to_owned(),
                reason => reason.to_owned(),
            },
            segments: (0..).zip(self.turns).flat_map(|(turn, of)| segments(turn, of)).collect(),
            sampling,
            reward: turn_rewards.iter().sum(),
            reward_components: reward.components,
            turn_rewards,
            metadata,
        }))
    }
}

/// What the verifiers say about a turn, before the discount.
fn facts(turn: &Turn) -> Value {
    let reward = &turn.scored.reward;
    json!({
        "reward": reward.value,
        "components": reward.components,
        "answer": reward.answer,
        "finishReason": finish_reason(&turn.sampled),
    })
}

fn finish_reason(sampled: &Sampled) -> &'static str {
    sampled.completion.finish_reason.unwrap_or_default()
}

fn segments(index: u32, turn: Turn) -> [Segment; 2] {
    let completion = turn.sampled.completion;
    [
        Segment::given(index, turn.given, turn.given_text),
        Segment {
            turn: index,
            tokens: completion.tokens,
            trained: true,
            sampler_logprobs: completion.logprobs,
            teacher_logprobs: Vec::new(),
            versions: completion.versions,
            text: turn.scored.text,
        },
    ]
}

#[cfg(test)]
mod tests;
