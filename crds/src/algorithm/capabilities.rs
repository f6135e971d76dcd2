//! Capabilities of algorithms: what the rest of a run asks about its algorithm instead of comparing
//! kinds. Each algorithm has them in the file of its settings.

use std::borrow::Cow;

use super::grpo::GrpoSpec;
use super::teacher::TeacherSource;
use crate::optimizer::OptimizerSpec;
use crate::rollout::RolloutSpec;

/// Rows that an algorithm trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// Prompts; completions are sampled from the policy.
    Prompts,
    /// Prompts with the completions to learn.
    Demonstrations,
    /// Prompts with a chosen and a rejected completion.
    Pairs,
    /// No rows: nothing is trained.
    None,
}

/// A model that learners hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelRole {
    /// The model that is trained and exported; a reward model of `rewardModel`.
    Policy,
    /// The policy before training, for a KL penalty and for `dpo`; the teacher, if there is one.
    Reference,
    /// A value model that is trained beside the policy, or the policy's value head.
    Critic,
}

/// What the loss of an algorithm needs of a model that is not trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrozenModel {
    /// Log-probabilities of the policy before training.
    Reference,
    /// Log-probabilities of a teacher.
    Teacher,
    /// The most likely tokens of a teacher.
    TeacherTopTokens,
}

/// Input of each trained token that requires a forward pass without gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Log-probabilities under the reference model, or the teacher that takes its place.
    Reference,
    /// Log-probabilities under the policy before the step's first update, and the values of its
    /// value head, if it has one.
    Proximal,
    /// Log-probabilities and entropies under the current policy, before each pass with gradients.
    /// The loss then gets whole micro-batches, as objectives with a ratio per sequence need;
    /// without it, chunks that may split sequences.
    Policy,
    /// Values under the critic, or the policy's value head, before the step's first update.
    Values,
    /// This many most likely tokens of the teacher with their log-probabilities. Passes of the
    /// policy then return its log-probabilities of these tokens, too.
    TopTokens(u32),
}

/// Capabilities of an algorithm. Those with a default are of the algorithms that differ from it.
pub trait Capabilities {
    /// Name of the field of `spec.algorithm`.
    fn name(&self) -> &'static str;

    /// Rows that a step trains on.
    fn data(&self) -> DataKind;

    /// Prompts, demonstrations or pairs of a step.
    fn batch_size(&self, rollout: &RolloutSpec) -> u32;

    /// Samples of one prompt in a step; two of a pair.
    fn group_size(&self) -> u32 {
        if self.data() == DataKind::Pairs { 2 } else { 1 }
    }

    /// Passes of a step over its batch.
    fn epochs(&self) -> u32 {
        1
    }

    /// Signals of a step of `updates` updates, in the order of their passes.
    fn signals(&self, _rollout: &RolloutSpec, _updates: u32) -> Vec<Signal> {
        Vec::new()
    }

    /// Whether the run cannot do without rewards.
    fn needs_reward(&self) -> bool {
        false
    }

    /// Settings of rewards and of the policy's loss, of an algorithm that learns from
    /// completions of the policy.
    fn policy(&self) -> Option<Cow<'_, GrpoSpec>> {
        None
    }

    /// The model without training whose outputs are inputs of the loss.
    fn frozen_model(&self) -> Option<FrozenModel> {
        None
    }

    /// The teacher, in a folder or served.
    fn teacher_source(&self) -> Option<TeacherSource<'_>> {
        None
    }

    /// Folder of the teacher that learners hold in the place of the reference model.
    fn teacher(&self) -> Option<&str> {
        self.teacher_source()?.held()
    }

    /// The teacher that a server or engines of the job serve, whose log-probabilities take the
    /// place of the reference model.
    fn served_teacher(&self) -> Option<TeacherSource<'_>> {
        self.teacher_source().filter(|own| own.is_served())
    }

    /// Optimizer of the critic, if the algorithm trains one.
    fn critic_optimizer(&self, _policy: &OptimizerSpec) -> Option<OptimizerSpec> {
        None
    }

    /// Steps at the start that train the critic only.
    fn critic_warmup_steps(&self) -> u32 {
        0
    }

    /// Whether the critic is a value head on the policy.
    fn has_value_head(&self) -> bool {
        false
    }

    /// Whether the critic predicts normalized values.
    fn normalizes_values(&self) -> bool {
        false
    }

    /// Whether the trained model has a scalar head, so that it scores sequences and cannot sample.
    fn trains_scores(&self) -> bool {
        false
    }

    /// Divisor of the logits that learners compute: that of the sampler; 1 without rollouts.
    fn temperature(&self, rollout: &RolloutSpec) -> f64 {
        if self.has_rollouts() { rollout.temperature } else { 1.0 }
    }

    /// Whether steps train on completions that engines sample.
    fn has_rollouts(&self) -> bool {
        self.data() == DataKind::Prompts
    }

    /// Models that learners hold, the policy first.
    fn model_roles(&self) -> Vec<ModelRole> {
        if self.data() == DataKind::None {
            return Vec::new();
        }
        let is_held = self.frozen_model().is_some() && self.served_teacher().is_none();
        let has_critic = self.critic_optimizer(&OptimizerSpec::default()).is_some();
        let roles = [
            Some(ModelRole::Policy),
            is_held.then_some(ModelRole::Reference),
            has_critic.then_some(ModelRole::Critic),
        ];
        roles.into_iter().flatten().collect()
    }
}
