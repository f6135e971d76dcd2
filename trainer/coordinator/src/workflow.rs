//! Workflow of a run: how many turns a sample has, what follows a turn, and the sample's reward.
//! Pure, except for the calls of an environment and of tools.
//!
//! ```text
//!  multiTurn   reward r of turn t ─┬─ r ≥ correctReward, t = maxTurns ─▶ r · discount^(t − 1)
//!                                  └─ else ─▶ feedback ─▶ turn t + 1
//!  environment Σ rewards of the turns ([`environment`])
//!  tools       reward r of the last turn ([`tools`])
//!  agent       rewards r of the program ─▶ Σ r · discount^(t − 1)
//! ```

mod environment;
mod next;
mod session;
mod tools;

use rljob_crds::agent::AgentWorkflow;
use rljob_crds::algorithm::RolloutSpec;
use rljob_crds::workflow::{MultiTurnWorkflow, WorkflowSpec};
use rljob_protocol::status::{RewardFailure, RewardOutage};

use crate::data::{Feedback, FeedbackError, Fields, KeptFields, Prompt, TurnFacts};
use crate::reward::{Reward, Runner};
use crate::text::{Message, TextError};

pub use environment::{Environment, Session as EnvironmentSession};
pub use next::Next;
pub use tools::{ToolError, ToolSet, ToolTurn};

/// The workflow of a run.
#[derive(Debug)]
pub enum Workflow {
    /// A prompt and its completion.
    SingleTurn,
    MultiTurn(Box<MultiTurn>),
    Environment(Box<Environment>),
    Tools(Box<ToolSet>),
    /// A program requests the completions.
    Agent(AgentWorkflow),
}

/// Attempts at a prompt with feedback after each one that is wrong.
#[derive(Debug)]
pub struct MultiTurn {
    spec: MultiTurnWorkflow,
    feedback: Feedback,
}

/// A workflow that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowError {
    #[error(transparent)]
    Feedback(#[from] FeedbackError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("failed to create the client of rollout.workflow.environment")]
    Client(#[source] reqwest::Error),
    #[error(transparent)]
    Tool(#[from] ToolError),
}

impl Workflow {
    /// Compiles the workflow of a spec. `run` distinguishes the sessions of runs that share a
    /// server. `runner` runs programs.
    pub fn new(rollout: &RolloutSpec, run: &str, runner: &Runner) -> Result<Self, WorkflowError> {
        match rollout.workflow.as_ref() {
            Some(WorkflowSpec { agent: Some(spec), .. }) => Ok(Self::Agent(spec.clone())),
            Some(WorkflowSpec { multi_turn: Some(spec), .. }) => {
                let feedback = Feedback::new(&spec.feedback)?;
                Ok(Self::MultiTurn(Box::new(MultiTurn { spec: spec.clone(), feedback })))
            }
            Some(WorkflowSpec { environment: Some(spec), .. }) => {
                let environment =
                    Environment::new(spec, run, runner).map_err(WorkflowError::Client)?;
                Ok(Self::Environment(Box::new(environment)))
            }
            Some(WorkflowSpec { tools: Some(spec), .. }) => {
                Ok(Self::Tools(Box::new(ToolSet::new(spec, run, runner)?)))
            }
            _ => Ok(Self::SingleTurn),
        }
    }

    /// The environment, if there is one.
    pub fn environment(&self) -> Option<&Environment> {
        match self {
            Self::Environment(environment) => Some(environment),
            Self::SingleTurn | Self::MultiTurn(_) | Self::Tools(_) | Self::Agent(_) => None,
        }
    }

    /// The tools, if there are some.
    pub fn tools(&self) -> Option<&ToolSet> {
        match self {
            Self::Tools(tools) => Some(tools),
            _ => None,
        }
    }

    /// The outage of a server that is down.
    pub fn outage(&self) -> Option<RewardOutage> {
        match self {
            Self::Environment(environment) => environment.outage(),
            Self::Tools(tools) => tools.outage(),
            Self::SingleTurn | Self::MultiTurn(_) | Self::Agent(_) => None,
        }
    }

    /// The first failed call of an environment.
    pub fn failure(&self) -> Option<RewardFailure> {
        self.environment().and_then(Environment::failure)
    }

    /// Whether the first of several turns has a separate reward.
    pub fn has_first_turn_reward(&self) -> bool {
        !matches!(self, Self::SingleTurn | Self::Tools(_))
    }

    /// Fields of a row that turns after the first use.
    pub fn kept_fields(&self) -> Result<KeptFields, FeedbackError> {
        match self {
            Self::SingleTurn | Self::Environment(_) | Self::Tools(_) => Ok(KeptFields::None),
            Self::MultiTurn(multi_turn) => multi_turn.feedback.fields(),
            Self::Agent(_) => Ok(KeptFields::All),
        }
    }

    /// The feedback template, if there is one.
    pub fn feedback(&self) -> Option<&Feedback> {
        match self {
            Self::SingleTurn | Self::Environment(_) | Self::Tools(_) | Self::Agent(_) => None,
            Self::MultiTurn(multi_turn) => Some(&multi_turn.feedback),
        }
    }

    /// Messages after turn `number`, counted from 1, of a prompt; those of an environment and of
    /// tools are in their answers.
    pub fn messages(
        &self,
        prompt: &Prompt,
        number: u32,
        completion: &str,
        reward: &Reward,
    ) -> Result<Next<Vec<Message>>, FeedbackError> {
        let Self::MultiTurn(multi_turn) = self else { return Ok(Next::End) };
        let MultiTurn { spec, feedback } = multi_turn.as_ref();
        if reward.value >= spec.correct_reward {
            return Ok(Next::End);
        }
        if number >= spec.max_turns {
            return Ok(Next::Limit);
        }
        let turn = TurnFacts {
            number,
            completion,
            reward: reward.value,
            components: &reward.components,
            answer: reward.answer.as_deref(),
        };
        let fields: Option<&Fields> = prompt.fields.as_deref();
        Ok(Next::Turn(vec![Message::user(feedback.render(prompt.row, fields, turn)?)]))
    }

    /// Rewards by turn, whose sum is the reward of the sample, from the rewards of its turns.
    pub fn turn_rewards(&self, rewards: &[f64]) -> Vec<f64> {
        let (discount, only_last) = match self {
            Self::SingleTurn | Self::Tools(_) => (1.0, true),
            Self::MultiTurn(multi_turn) => (multi_turn.spec.discount, true),
            Self::Environment(environment) => return environment.turn_rewards(rewards),
            Self::Agent(agent) => (agent.discount, false),
        };
        let last = rewards.len().saturating_sub(1);
        let credited = |(turn, reward): (usize, &f64)| {
            let factor = discount.powi(i32::try_from(turn).unwrap_or(i32::MAX));
            if turn == last || !only_last { reward * factor } else { 0.0 }
        };
        rewards.iter().enumerate().map(credited).collect()
    }

    /// Reward of a sample without discount, which evaluations report, from the rewards of its
    /// turns.
    pub fn undiscounted(&self, rewards: &[f64]) -> f64 {
        match self {
            Self::SingleTurn | Self::MultiTurn(_) | Self::Tools(_) | Self::Agent(_) => {
                rewards.last().copied().unwrap_or_default()
            }
            Self::Environment(_) => rewards.iter().sum(),
        }
    }
}

/// Lengths of a sample in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of the whole sample.
    pub context: u32,
    /// After its prompt.
    pub max_tokens: u32,
    /// Of a completion.
    pub max_new_tokens: u32,
}

impl Lengths {
    /// The lengths that the spec and the model's context allow.
    pub fn new(workflow: Option<&WorkflowSpec>, context: u32, max_new_tokens: u32) -> Self {
        let max_tokens = workflow.and_then(WorkflowSpec::max_tokens).unwrap_or(u32::MAX);
        Self { context, max_tokens, max_new_tokens }
    }

    /// Maximum length of the completion after a prompt and `later` tokens that follow it; 0 if
    /// there is no room for one.
    pub fn room(&self, prompt: usize, later: usize) -> u32 {
        let left =
            |limit: u32, used: usize| limit.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX));
        left(self.context, prompt.saturating_add(later))
            .min(left(self.max_tokens, later))
            .min(self.max_new_tokens)
    }
}

#[cfg(test)]
mod tests;
