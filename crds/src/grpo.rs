//! Settings of `grpo`: from rewards to advantages, and from advantages to the loss. Field by field
//! what the learner's `objective` computes.
//!
//! ```text
//!  reward ─ overlongPenalty ─ rewardShaping ─ rewardNormalization ─ (− klCoefficient · KL to go)
//!    ─ advantageNormalization ─▶ advantage
//!  ratio to proximalLogprobs ─ clipLow, clipHigh, cClip ─ × behaviorWeight ─ lossAggregation
//!    ─ (+ klCoefficient · KL) ─▶ loss
//! ```

mod behavior;
mod normalization;

pub use behavior::{
    BehaviorAction, BehaviorAggregation, BehaviorLevel, BehaviorMetric, BehaviorWeight,
};
pub use normalization::{
    NormalizationLevel, NormalizationMean, NormalizationScale, NormalizationSpec,
};

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Settings of `grpo`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.behaviorWeight) || self.proximalLogprobs == 'Recompute'")
        .message("behaviorWeight needs proximalLogprobs Recompute: with the log-probabilities of \
                 the sampler, every weight is 1")
)]
pub struct GrpoSpec {
    /// Samples of one prompt, whose rewards are normalised together. Default 8.
    #[serde(default = "group_size")]
    #[schemars(range(min = 2, max = 1024))]
    pub group_size: u32,
    /// The importance ratio is clipped below 1 − clipLow. Default 0.2.
    #[serde(default = "clip")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub clip_low: f64,
    /// The importance ratio is clipped above 1 + clipHigh. Default 0.2.
    #[serde(default = "clip")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub clip_high: f64,
    /// Dual clip (Ye et al., arXiv 1912.09729): a token's loss is at most cClip · |advantage|,
    /// however large its ratio. Absent: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 1000.0))]
    pub c_clip: Option<f64>,
    /// How the tokens' losses become one number. Default Token.
    #[serde(default)]
    pub loss_aggregation: LossAggregation,
    /// A penalty on completions that come close to `rollout.maxNewTokens` (DAPO, arXiv 2503.14476).
    /// Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlong_penalty: Option<OverlongPenalty>,
    /// The reward becomes (reward + bias) · scale within ± clip, before it is normalised.
    #[serde(default)]
    pub reward_shaping: RewardShaping,
    /// How rewards become advantages. Default the group's mean and standard deviation.
    #[serde(default)]
    pub reward_normalization: NormalizationSpec,
    /// A second normalisation, of the advantages over trainable tokens. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage_normalization: Option<NormalizationSpec>,
    /// Weight of the KL divergence from the model before training, per token. 0 keeps no reference
    /// model. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub kl_coefficient: f64,
    /// Estimator of that divergence (joschu.net/blog/kl-approx.html), within ± 10 a token. Default
    /// K1.
    #[serde(default)]
    pub kl_estimator: KlEstimator,
    /// Where that divergence goes. Default Reward.
    #[serde(default)]
    pub kl_term: KlTerm,
    /// What the ratio is taken against. Default Recompute.
    #[serde(default)]
    pub proximal_logprobs: ProximalLogprobs,
    /// The decoupled loss (arXiv 2505.24298): each token's loss is multiplied by exp(proximal −
    /// sampler's log-probability), within bounds. Absent: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior_weight: Option<BehaviorWeight>,
}

fn group_size() -> u32 {
    8
}

fn clip() -> f64 {
    0.2
}

impl Default for GrpoSpec {
    fn default() -> Self {
        Self {
            group_size: group_size(),
            clip_low: clip(),
            clip_high: clip(),
            c_clip: None,
            loss_aggregation: LossAggregation::default(),
            overlong_penalty: None,
            reward_shaping: RewardShaping::default(),
            reward_normalization: NormalizationSpec::default(),
            advantage_normalization: None,
            kl_coefficient: 0.0,
            kl_estimator: KlEstimator::default(),
            kl_term: KlTerm::default(),
            proximal_logprobs: ProximalLogprobs::default(),
            behavior_weight: None,
        }
    }
}

/// How the tokens' losses of a minibatch become one number.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum LossAggregation {
    /// Mean over the trainable tokens: long completions weigh more (DAPO).
    #[default]
    Token,
    /// Mean over completions of the mean over their tokens (GRPO as published).
    Sequence,
    /// Sum ÷ (completions · `rollout.maxNewTokens`): no completion's length changes its tokens'
    /// weight (Dr. GRPO, arXiv 2503.20783).
    Constant,
}

/// A penalty that grows over the last tokens before `rollout.maxNewTokens`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OverlongPenalty {
    /// Tokens over which the penalty grows from 0 to `factor`.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub tokens: u32,
    /// What is taken off the reward of a completion of `rollout.maxNewTokens` tokens. Default 1.
    #[serde(default = "unity")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub factor: f64,
}

fn unity() -> f64 {
    1.0
}

/// The reward becomes (reward + bias) · scale within ± clip.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardShaping {
    /// Added to every reward. Default 0.
    #[serde(default)]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub bias: f64,
    /// Factor of the sum. Default 1.
    #[serde(default = "unity")]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub scale: f64,
    /// Largest size of the product. Default 20.
    #[serde(default = "reward_clip")]
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub clip: f64,
}

fn reward_clip() -> f64 {
    20.0
}

impl Default for RewardShaping {
    fn default() -> Self {
        Self { bias: 0.0, scale: unity(), clip: reward_clip() }
    }
}

/// Estimator of a KL divergence from samples, with x = log-probability − the reference's.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum KlEstimator {
    /// x: unbiased, of either sign.
    #[default]
    K1,
    /// x² ÷ 2: never negative, biased.
    K2,
    /// e⁻ˣ − 1 + x: never negative, unbiased.
    K3,
}

/// Where the divergence from the reference model goes.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum KlTerm {
    /// Off each token's reward, of the sampler's log-probabilities: a token's advantage loses what
    /// it and the tokens after it diverge.
    #[default]
    Reward,
    /// Onto the loss, of the learner's log-probabilities, whose gradient it has.
    Loss,
}

/// What the importance ratio is taken against.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum ProximalLogprobs {
    /// The learner's own log-probabilities before the step's first update; with one minibatch they
    /// cost nothing, for the ratio is 1.
    #[default]
    Recompute,
    /// The sampler's log-probabilities (PPO without decoupling).
    Sampler,
}
