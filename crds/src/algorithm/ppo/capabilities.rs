//! Capabilities of `ppo`.

use std::borrow::Cow;

use super::PpoSpec;
use crate::algorithm::capabilities::{Capabilities, DataKind, FrozenModel, Signal};
use crate::algorithm::grpo::GrpoSpec;
use crate::optimizer::OptimizerSpec;
use crate::rollout::RolloutSpec;

impl Capabilities for PpoSpec {
    fn name(&self) -> &'static str {
        "ppo"
    }

    fn data(&self) -> DataKind {
        DataKind::Prompts
    }

    fn batch_size(&self, rollout: &RolloutSpec) -> u32 {
        rollout.batch_size
    }

    fn group_size(&self) -> u32 {
        self.group_size
    }

    fn epochs(&self) -> u32 {
        self.epochs
    }

    fn signals(&self, rollout: &RolloutSpec, updates: u32) -> Vec<Signal> {
        let mut signals = self.grpo().signals(rollout, updates);
        if self.value_head.is_none() || !signals.contains(&Signal::Proximal) {
            signals.push(Signal::Values);
        }
        signals
    }

    fn needs_reward(&self) -> bool {
        true
    }

    fn policy(&self) -> Option<Cow<'_, GrpoSpec>> {
        Some(Cow::Owned(self.grpo()))
    }

    fn frozen_model(&self) -> Option<FrozenModel> {
        (self.kl_coefficient > 0.0).then_some(FrozenModel::Reference)
    }

    fn critic_optimizer(&self, policy: &OptimizerSpec) -> Option<OptimizerSpec> {
        let own = self.critic_optimizer.as_ref().unwrap_or(policy);
        let of_head = self.value_head.as_ref().and_then(|head| head.learning_rate);
        let learning_rate = of_head.unwrap_or(own.learning_rate);
        Some(OptimizerSpec { learning_rate, ..own.clone() })
    }

    fn critic_warmup_steps(&self) -> u32 {
        self.critic_warmup_steps
    }

    fn has_value_head(&self) -> bool {
        self.value_head.is_some()
    }

    fn normalizes_values(&self) -> bool {
        self.value_normalization.is_some()
    }
}
