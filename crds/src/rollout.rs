//! How completions are sampled, how far ahead of training, and which of them are trained on.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// How completions are sampled.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutSpec {
    /// Prompts a step; each is sampled `groupSize` times. Default 32.
    #[serde(default = "batch_size")]
    #[schemars(range(min = 1, max = 65536))]
    pub batch_size: u32,
    /// Longest completion in tokens. Default 1024.
    #[serde(default = "max_new_tokens")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_new_tokens: u32,
    /// Sampling temperature; log-probabilities are of logits ÷ temperature on both sides. Default
    /// 1.
    #[serde(default = "temperature")]
    #[schemars(range(min = 0.01, max = 10.0))]
    pub temperature: f64,
    /// What becomes of a completion that ends because it is as long as allowed. Default Score.
    #[serde(default)]
    pub truncated: Truncated,
    /// Steps by which sampling may run ahead of training: while step s is trained, prompts up to
    /// those of step s + maxStaleness are sampled (AReaL, arXiv 2505.24298, eq. 3). 0 samples a
    /// step's prompts with the weights of the step before and no others. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub max_staleness: u32,
    /// What becomes of a completion whose oldest token is staler than maxStaleness, as it may be by
    /// up to weightSync.everySteps − 1 steps. Default Keep.
    #[serde(default)]
    pub stale_samples: StaleSamples,
    /// Leave prompts out whose rewards teach nothing, and sample others instead (DAPO, arXiv
    /// 2503.14476). Absent: every prompt is trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSampling>,
}

/// What becomes of a completion that ends because it is as long as allowed. Its reward counts in
/// its group's normalisation in any case.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum Truncated {
    /// It is scored and trained on like any other.
    #[default]
    Score,
    /// Its tokens carry no loss (DAPO's overlong filtering, arXiv 2503.14476).
    Mask,
    /// Its normalised reward is 0; its tokens still count in the loss's denominator.
    Zero,
}

/// What becomes of a completion whose oldest token is staler than maxStaleness.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum StaleSamples {
    /// It is trained on.
    #[default]
    Keep,
    /// It is not begun before newer weights are published; where one is found all the same (the
    /// spec was changed since), it is sampled again.
    Drop,
}

/// Prompts all of whose completions have the same reward, or that have fewer than two completions
/// left after rejections, are replaced by the next ones.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DynamicSampling {
    /// Prompts sampled for a step are at most so many times batchSize; from there on they are
    /// trained on whatever their rewards, with a warning. Default 4.
    #[serde(default = "max_attempts")]
    #[schemars(range(min = 2, max = 100))]
    pub max_attempts: u32,
}

fn batch_size() -> u32 {
    32
}

fn max_new_tokens() -> u32 {
    1024
}

fn temperature() -> f64 {
    1.0
}

fn max_attempts() -> u32 {
    4
}

impl Default for RolloutSpec {
    fn default() -> Self {
        Self {
            batch_size: batch_size(),
            max_new_tokens: max_new_tokens(),
            temperature: temperature(),
            truncated: Truncated::default(),
            max_staleness: 0,
            stale_samples: StaleSamples::default(),
            dynamic_sampling: None,
        }
    }
}
