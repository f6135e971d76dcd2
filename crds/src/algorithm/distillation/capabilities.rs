//! Capabilities of `distillation`, apart from its settings, which the trait names.

use std::borrow::Cow;

use super::{DistillationSpec, TeacherSpec};
use crate::algorithm::capabilities::{Capabilities, DataKind, FrozenModel, Signal};
use crate::algorithm::grpo::GrpoSpec;
use crate::rollout::RolloutSpec;

impl Capabilities for DistillationSpec {
    fn name(&self) -> &'static str {
        "distillation"
    }

    fn data(&self) -> DataKind {
        if self.off_policy.is_some() { DataKind::Demonstrations } else { DataKind::Prompts }
    }

    fn batch_size(&self, rollout: &RolloutSpec) -> u32 {
        self.off_policy.as_ref().map_or(rollout.batch_size, |own| own.batch_size)
    }

    fn group_size(&self) -> u32 {
        self.group_size
    }

    fn signals(&self, rollout: &RolloutSpec, updates: u32) -> Vec<Signal> {
        match &self.off_policy {
            Some(own) => vec![Signal::TopTokens(own.top_k)],
            None => self.grpo().signals(rollout, updates),
        }
    }

    fn policy(&self) -> Option<Cow<'_, GrpoSpec>> {
        self.off_policy.is_none().then(|| Cow::Owned(self.grpo()))
    }

    fn frozen_model(&self) -> Option<FrozenModel> {
        let is_off_policy = self.off_policy.is_some();
        Some(if is_off_policy { FrozenModel::TeacherTopTokens } else { FrozenModel::Teacher })
    }

    fn teacher(&self) -> Option<&str> {
        self.teacher.held()
    }

    fn served_teacher(&self) -> Option<&TeacherSpec> {
        let is_served = self.teacher.server.is_some() || self.teacher.engines.is_some();
        is_served.then_some(&self.teacher)
    }

    fn temperature(&self, rollout: &RolloutSpec) -> f64 {
        self.off_policy.as_ref().map_or(rollout.temperature, |own| own.temperature)
    }
}
