//! Calls of a step: what runs, where, and which data it needs and makes.

use std::fmt;

use serde::{Serialize, Serializer};

use super::data::Data;
use crate::algorithm::Signal;

/// Model of a call.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Model {
    /// The language model that is trained or evaluated.
    Policy,
    /// The policy before training.
    Reference,
    /// The teacher of a distillation.
    Teacher,
    /// The value model of `ppo`.
    Critic,
    /// A model that scores completions: served, or trained by `rewardModel`.
    Reward,
}

impl Model {
    /// Name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Reference => "reference",
            Self::Teacher => "teacher",
            Self::Critic => "critic",
            Self::Reward => "reward",
        }
    }
}

/// Processes that run a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workers {
    /// All engines of rollouts.
    Engines,
    /// Engines of the job that serve the reward model.
    RewardEngines,
    /// Engines of the job that serve the teacher.
    TeacherEngines,
    /// All ranks of the trainer together.
    Learners,
    /// All ranks of a group of `trainer.groups`, by its name.
    Group(String),
    /// The coordinator.
    Coordinator,
    /// The container `rewards` of the coordinator's pod, and the sandbox in it.
    RewardRunner,
    /// Pods of `spec.verifiers`.
    VerifierPods,
    /// A server that the job does not start, by its purpose.
    Server(String),
}

impl fmt::Display for Workers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engines => formatter.write_str("engines"),
            Self::RewardEngines => formatter.write_str("reward engines"),
            Self::TeacherEngines => formatter.write_str("teacher engines"),
            Self::Learners => formatter.write_str("learners"),
            Self::Group(name) => write!(formatter, "group {name}"),
            Self::Coordinator => formatter.write_str("coordinator"),
            Self::RewardRunner => formatter.write_str("reward runner"),
            Self::VerifierPods => formatter.write_str("verifier pods"),
            Self::Server(purpose) => write!(formatter, "{purpose} server"),
        }
    }
}

impl Serialize for Workers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a call does.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Transfers weights to engines.
    Sync,
    /// Samples completions.
    Generate,
    /// Answers a completion: feedback, an environment, a tool or an agent.
    Turn,
    /// Scores a completion.
    Reward,
    /// Forward passes without gradients.
    Inference,
    /// Makes samples, batches, advantages or estimates, without a model.
    Transform,
    /// Passes with gradients and optimizer updates.
    Train,
}

/// Part of a step whose duration is a metric.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Weight sync.
    Sync,
    /// From the first prompt to the last finished sample. Each of its calls handles a sample as
    /// soon as its inputs exist; calls of different samples run side by side.
    Rollouts,
    /// Packing, on the learners' request.
    Batch,
    /// The learners' part.
    Training,
}

impl Phase {
    /// Name of the metric with its seconds.
    pub fn seconds(self) -> Option<&'static str> {
        match self {
            Self::Sync => Some("syncSeconds"),
            Self::Rollouts => Some("rolloutSeconds"),
            Self::Batch => None,
            Self::Training => Some("trainSeconds"),
        }
    }
}

/// A call of the learners, whose seconds are a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LearnerCall {
    /// Log-probabilities under the reference model, or a teacher that the learners hold. The call
    /// of a learner group, if one holds the model.
    Reference,
    /// Log-probabilities under the policy before the step's first update, and the values of its
    /// value head, if it has one.
    Proximal,
    /// Values before the first update of the critic, or of a policy with a value head.
    Values,
    /// Advantages and weights of trained tokens.
    Advantages,
    /// Passes and updates of the trained model, with its value head if it has one.
    Policy,
    /// Passes and updates of a critic that is a second model.
    Critic,
}

impl LearnerCall {
    /// All calls.
    pub const ALL: [Self; 6] = [
        Self::Reference,
        Self::Proximal,
        Self::Values,
        Self::Advantages,
        Self::Policy,
        Self::Critic,
    ];

    /// The call that makes a signal. That of the current policy is a part of each update.
    pub fn of_signal(signal: Signal) -> Option<Self> {
        match signal {
            Signal::Reference | Signal::TopTokens(_) => Some(Self::Reference),
            Signal::Proximal => Some(Self::Proximal),
            Signal::Values => Some(Self::Values),
            Signal::Policy => None,
        }
    }

    /// Name of the metric with its seconds.
    pub const fn seconds(self) -> &'static str {
        match self {
            Self::Reference => "referenceSeconds",
            Self::Proximal => "proximalSeconds",
            Self::Values => "valueSeconds",
            Self::Advantages => "advantageSeconds",
            Self::Policy => "policySeconds",
            Self::Critic => "criticSeconds",
        }
    }
}

/// A call of a step.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Unique in its plan.
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// Its model, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    /// Where it runs.
    pub workers: Workers,
    /// Part of the step.
    pub phase: Phase,
    /// What must exist before it begins.
    pub inputs: Vec<Data>,
    /// Further inputs after the first turn of a sample. They are outputs of calls that follow this
    /// one in a turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub later_inputs: Vec<Data>,
    /// What it makes.
    pub outputs: Vec<Data>,
    /// Optimizer updates; 0 except for training.
    #[serde(skip_serializing_if = "is_zero")]
    pub updates: u32,
    /// Metric with its seconds; absent if only those of its phase are recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<&'static str>,
    /// Settings that change how it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Call {
    /// A call without data.
    pub fn new(name: impl Into<String>, kind: Kind, workers: Workers, phase: Phase) -> Self {
        Self {
            name: name.into(),
            kind,
            model: None,
            workers,
            phase,
            inputs: Vec::new(),
            later_inputs: Vec::new(),
            outputs: Vec::new(),
            updates: 0,
            seconds: None,
            note: None,
        }
    }

    /// With a model.
    #[must_use]
    pub fn of(self, model: Model) -> Self {
        Self { model: Some(model), ..self }
    }

    /// With inputs and outputs.
    #[must_use]
    pub fn with(
        self,
        inputs: impl IntoIterator<Item = Data>,
        outputs: impl IntoIterator<Item = Data>,
    ) -> Self {
        let (inputs, outputs) = (inputs.into_iter().collect(), outputs.into_iter().collect());
        Self { inputs, outputs, ..self }
    }

    /// With inputs of later turns.
    #[must_use]
    pub fn later(self, inputs: impl IntoIterator<Item = Data>) -> Self {
        Self { later_inputs: inputs.into_iter().collect(), ..self }
    }

    /// With a note.
    #[must_use]
    pub fn noting(self, note: Option<String>) -> Self {
        Self { note, ..self }
    }
}
