//! Signals of an objective: inputs of its loss that need a forward pass without gradients.

use super::call::LearnerCall;
use crate::algorithm::{Algorithm, RolloutSpec};
use crate::distillation::DistillationSpec;
use crate::dpo::DpoSpec;
use crate::grpo::{BehaviorLevel, GrpoSpec, ProximalLogprobs, RatioLevel};
use crate::ppo::PpoSpec;

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

impl Signal {
    /// The call that makes it. That of the current policy is a part of each update.
    pub fn call(self) -> Option<LearnerCall> {
        match self {
            Self::Reference | Self::TopTokens(_) => Some(LearnerCall::Reference),
            Self::Proximal => Some(LearnerCall::Proximal),
            Self::Values => Some(LearnerCall::Values),
            Self::Policy => None,
        }
    }
}

impl GrpoSpec {
    /// Signals of a step of `updates` updates, in the order of their passes.
    pub fn signals(&self, rollout: &RolloutSpec, updates: u32) -> Vec<Signal> {
        let behavior = self.effective_behavior_weight(rollout);
        let by_sequence =
            behavior.as_ref().is_some_and(|bounds| bounds.level == BehaviorLevel::Sequence);
        // With one update and per-token bounds, the pass with gradients provides them.
        let proximal = self.proximal_logprobs == ProximalLogprobs::Recompute
            && (updates > 1 || by_sequence || self.second_moment_limit.is_some());
        // The loss of a token depends on others of its completion, unless all ratios are 1 and the
        // tokens of a completion have one advantage.
        let has_ratios = proximal || self.proximal_logprobs == ProximalLogprobs::Sampler;
        let varies = behavior.is_some() || self.kl_coefficient > 0.0;
        let whole = self.ratio_level != RatioLevel::Token && (has_ratios || varies);
        let signals = [
            (self.kl_coefficient > 0.0 || self.distillation.is_some()).then_some(Signal::Reference),
            proximal.then_some(Signal::Proximal),
            whole.then_some(Signal::Policy),
        ];
        signals.into_iter().flatten().collect()
    }
}

impl PpoSpec {
    /// Signals of a step of `updates` updates, in the order of their passes.
    pub fn signals(&self, rollout: &RolloutSpec, updates: u32) -> Vec<Signal> {
        let mut signals = self.policy().signals(rollout, updates);
        if self.value_head.is_none() || !signals.contains(&Signal::Proximal) {
            signals.push(Signal::Values);
        }
        signals
    }
}

impl DistillationSpec {
    /// Signals of a step of `updates` updates, in the order of their passes.
    pub fn signals(&self, rollout: &RolloutSpec, updates: u32) -> Vec<Signal> {
        match &self.off_policy {
            Some(own) => vec![Signal::TopTokens(own.top_k)],
            None => self.policy().signals(rollout, updates),
        }
    }
}

impl DpoSpec {
    /// Signals of a step, in the order of their passes.
    pub fn signals(&self) -> Vec<Signal> {
        vec![Signal::Reference, Signal::Policy]
    }
}

impl Algorithm<'_> {
    /// Signals of a step of `updates` updates, in the order of their passes.
    pub fn signals(self, rollout: &RolloutSpec, updates: u32) -> Vec<Signal> {
        match self {
            Self::Grpo(grpo) => grpo.signals(rollout, updates),
            Self::Ppo(ppo) => ppo.signals(rollout, updates),
            Self::Distillation(distillation) => distillation.signals(rollout, updates),
            Self::Dpo(dpo) => dpo.signals(),
            Self::Sft(_) | Self::RewardModel(_) | Self::Evaluation(_) => Vec::new(),
        }
    }

    /// Passes of a step over its batch.
    pub fn epochs(self) -> u32 {
        match self {
            Self::Grpo(grpo) => grpo.epochs,
            Self::Ppo(ppo) => ppo.epochs,
            _ => 1,
        }
    }
}
