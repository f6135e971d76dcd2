//! Capabilities of `grpo`, apart from its settings, which the trait names.

use std::borrow::Cow;

use super::{BehaviorLevel, GrpoSpec, ProximalLogprobs, RatioLevel};
use crate::algorithm::capabilities::{Capabilities, DataKind, FrozenModel, Signal};
use crate::algorithm::teacher::TeacherSource;
use crate::rollout::RolloutSpec;

impl Capabilities for GrpoSpec {
    fn name(&self) -> &'static str {
        "grpo"
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
            self.frozen_model().is_some().then_some(Signal::Reference),
            proximal.then_some(Signal::Proximal),
            whole.then_some(Signal::Policy),
        ];
        signals.into_iter().flatten().collect()
    }

    fn needs_reward(&self) -> bool {
        true
    }

    fn policy(&self) -> Option<Cow<'_, GrpoSpec>> {
        Some(Cow::Borrowed(self))
    }

    fn frozen_model(&self) -> Option<FrozenModel> {
        let has_teacher = self.distillation.is_some().then_some(FrozenModel::Teacher);
        has_teacher.or_else(|| (self.kl_coefficient > 0.0).then_some(FrozenModel::Reference))
    }

    fn teacher_source(&self) -> Option<TeacherSource<'_>> {
        self.distillation.as_ref().map(|joint| joint.teacher.source())
    }
}
