//! Settings and capabilities of `distillation`.

use std::borrow::Cow;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::capabilities::{Capabilities, DataKind, FrozenModel, Signal};
use super::grpo::{
    GrpoSpec, KlEstimator, KlTerm, LossAggregation, NormalizationMean, NormalizationScale,
    NormalizationSpec,
};
use super::teacher::{TeacherSource, TeacherSpec};
use crate::rollout::RolloutSpec;

/// Settings of `distillation`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.offPolicy) || has(self.teacher.path) && \
             !has(self.teacher.engines)")
        .message("offPolicy needs teacher.path without teacher.engines: learners compute the \
                 teacher's most likely tokens")
)]
#[x_kube(
    validation = Rule::new("!has(self.offPolicy) || \
             self.groupSize == 1 && self.lossAggregation == 'Token'")
        .message("groupSize and lossAggregation are not used with offPolicy; remove them")
)]
pub struct DistillationSpec {
    /// Model whose distribution the policy learns.
    pub teacher: TeacherSpec,
    /// Samples per prompt. Default 1.
    #[serde(default = "group_size")]
    #[schemars(range(min = 1, max = 1024))]
    pub group_size: u32,
    /// Aggregation of token losses. Default Token.
    #[serde(default)]
    pub loss_aggregation: LossAggregation,
    /// Learns the teacher's distribution over its most likely tokens at each token of given
    /// completions, instead of its log-probabilities of tokens that the policy samples. Rows are
    /// those of `sft`. Default distillation of sampled completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_policy: Option<OffPolicySpec>,
}

/// Off-policy distillation: the loss of a token is the divergence KL(teacher ‖ policy) over the
/// teacher's `topK` most likely tokens, and all others together as one.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OffPolicySpec {
    /// Most likely tokens of the teacher; all of a smaller vocabulary. Default 64.
    #[serde(default = "top_k")]
    #[schemars(range(min = 1, max = 1024))]
    pub top_k: u32,
    /// Divisor T of the logits of teacher and policy; the loss is multiplied by T² (Hinton et al.,
    /// arXiv 1503.02531). Default 1.
    #[serde(default = "temperature")]
    #[schemars(range(min = 0.1, max = 100.0))]
    pub temperature: f64,
    /// Sequences per step. Default 64.
    #[serde(default = "batch_size")]
    #[schemars(range(min = 1, max = 65536))]
    pub batch_size: u32,
}

fn group_size() -> u32 {
    1
}

fn top_k() -> u32 {
    64
}

fn temperature() -> f64 {
    1.0
}

fn batch_size() -> u32 {
    64
}

impl DistillationSpec {
    /// Settings of the policy's loss, which are those of `grpo` with the divergence from the
    /// teacher, in the place of the reference model, as the only reward.
    pub fn grpo(&self) -> GrpoSpec {
        GrpoSpec {
            group_size: self.group_size,
            loss_aggregation: self.loss_aggregation,
            reward_normalization: NormalizationSpec {
                mean: NormalizationMean::None,
                scale: NormalizationScale::None,
                ..NormalizationSpec::default()
            },
            kl_coefficient: 1.0,
            kl_estimator: KlEstimator::K1,
            kl_term: KlTerm::Reward,
            ..GrpoSpec::default()
        }
    }
}

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

    fn teacher_source(&self) -> Option<TeacherSource<'_>> {
        Some(self.teacher.source())
    }

    fn temperature(&self, rollout: &RolloutSpec) -> f64 {
        self.off_policy.as_ref().map_or(rollout.temperature, |own| own.temperature)
    }
}
