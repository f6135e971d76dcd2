//! Data that calls of a step pass on.

use serde::{Serialize, Serializer};

/// An input or output of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// Rows of `dataset.train` of an algorithm that samples.
    Prompts,
    /// Rows of `sft`.
    Demonstrations,
    /// Rows of `dpo`, `orpo` and `rewardModel`.
    Pairs,
    /// The trained model before the step.
    PolicyWeights,
    /// The critic, or the policy's value head, before the step.
    CriticWeights,
    /// Weights that engines sample with.
    EngineWeights,
    /// Completions that the program of an agent requests.
    AgentRequests,
    /// What engines sampled.
    Completions,
    /// Log-probabilities under the weights that sampled.
    BehaviorLogprobs,
    /// What a workflow appends between completions.
    TurnMessages,
    /// Weighted values of `spec.rewards`.
    Rewards,
    /// Rewards of an environment.
    EnvironmentRewards,
    /// Rewards that the program of an agent posts.
    AgentRewards,
    /// Finished samples.
    Samples,
    /// Log-probabilities under the teacher.
    TeacherLogprobs,
    /// Most likely tokens of the teacher of `distillation.offPolicy`.
    TeacherTopTokens,
    /// What the learners fetch.
    Batch,
    /// Log-probabilities under the reference model.
    ReferenceLogprobs,
    /// Log-probabilities under the policy before its first update.
    ProximalLogprobs,
    /// Values under the critic before its first update.
    Values,
    /// Advantages of trained tokens.
    Advantages,
    /// Returns that the critic learns.
    Returns,
    /// Weights of trained tokens in the loss.
    LossWeights,
    /// The trained model after the step.
    NewPolicyWeights,
    /// The critic, or the policy's value head, after the step.
    NewCriticWeights,
    /// Results of an evaluation.
    Estimates,
}

impl Data {
    /// Name, and form: type, shape and unit. S: samples, T: tokens of the samples, N: trained
    /// tokens.
    const fn described(self) -> (&'static str, &'static str) {
        match self {
            Self::Prompts => ("prompts", "token ids of each prompt, reference answer"),
            Self::Demonstrations => ("demonstrations", "token ids of each prompt and completion"),
            Self::Pairs => ("pairs", "token ids of each prompt, chosen and rejected completion"),
            Self::PolicyWeights => ("policyWeights", "tensors, fp32"),
            Self::CriticWeights => ("criticWeights", "tensors, fp32"),
            Self::EngineWeights => ("engineWeights", "tensors, compute type"),
            Self::AgentRequests => ("agentRequests", "messages and sampling settings"),
            Self::Completions => ("completions", "int64 [T] token ids"),
            Self::BehaviorLogprobs => ("behaviorLogprobs", "fp32 [T], nats"),
            Self::TurnMessages => ("turnMessages", "int64 [T] token ids, not trained on"),
            Self::Rewards => ("rewards", "fp64 [S], by component and turn"),
            Self::EnvironmentRewards => ("environmentRewards", "fp64 [S], by turn"),
            Self::AgentRewards => ("agentRewards", "fp64 [S], by turn"),
            Self::Samples => ("samples", "S lists of segments, with rewards"),
            Self::TeacherLogprobs => ("teacherLogprobs", "fp32 [T], nats"),
            Self::TeacherTopTokens => ("teacherTopTokens", "int32 [N, K] ids, fp32 [N, K], nats"),
            Self::Batch => ("batch", "packed micro-batches of each learner"),
            Self::ReferenceLogprobs => ("referenceLogprobs", "fp32 [N], nats"),
            Self::ProximalLogprobs => ("proximalLogprobs", "fp32 [N], nats"),
            Self::Values => ("values", "fp32 [N], unit of rewards"),
            Self::Advantages => ("advantages", "fp32 [N], unit of rewards"),
            Self::Returns => ("returns", "fp32 [N], unit of rewards"),
            Self::LossWeights => ("lossWeights", "fp32 [N]"),
            Self::NewPolicyWeights => ("newPolicyWeights", "tensors, fp32"),
            Self::NewCriticWeights => ("newCriticWeights", "tensors, fp32"),
            Self::Estimates => ("estimates", "fp64, pass@k, maj@k and their standard errors"),
        }
    }

    /// Name in plans.
    pub const fn name(self) -> &'static str {
        self.described().0
    }

    /// Type, shape and unit. S: samples, T: tokens of the samples, N: trained tokens.
    pub const fn form(self) -> &'static str {
        self.described().1
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
