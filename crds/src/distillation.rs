//! Settings of `distillation`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::grpo::{
    GrpoSpec, KlEstimator, KlTerm, LossAggregation, NormalizationMean, NormalizationScale,
    NormalizationSpec,
};

/// Settings of `distillation`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
}

/// Teacher of `distillation`. Learners hold it beside the policy, divided among themselves.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TeacherSpec {
    /// Folder with `config.json`, `tokenizer.json` and `*.safetensors`, as trainer pods see it. Its
    /// vocabulary is that of the policy; its shape may differ. `rljob run` resolves a relative path
    /// against the job file.
    #[schemars(length(min = 1, max = 4096))]
    pub path: String,
}

fn group_size() -> u32 {
    1
}

impl DistillationSpec {
    /// Settings of the policy's loss, which are those of `grpo` with the divergence from the
    /// teacher, in the place of the reference model, as the only reward.
    pub fn policy(&self) -> GrpoSpec {
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
