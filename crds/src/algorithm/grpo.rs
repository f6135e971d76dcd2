//! Settings of `grpo`, in the order in which the learner's objective uses them.
//!
//! ```text
//!  reward ─ overlongPenalty ─ rewardShaping ─ rewardNormalization ─ (− klCoefficient · KL to go)
//!    ─ advantageNormalization ─▶ advantage
//!  ratio to proximalLogprobs by ratioLevel ─ surrogate, clipLow, clipHigh, cClip
//!    ─ × behaviorWeight, secondMomentLimit ─ lossAggregation
//!    ─ (+ klCoefficient · KL + distillation − entropyCoefficient · entropy) ─▶ loss
//! ```

mod behavior;
mod capabilities;
mod distillation;
mod normalization;
mod surrogate;

pub use behavior::{
    BehaviorAction, BehaviorAggregation, BehaviorLevel, BehaviorMetric, BehaviorWeight,
};
pub use distillation::JointDistillation;
pub use normalization::{
    NormalizationLevel, NormalizationMean, NormalizationScale, NormalizationSpec,
};
pub use surrogate::{RatioLevel, SapoSpec, Surrogate};

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::rollout::RolloutSpec;

/// Settings of `grpo`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.behaviorWeight) || self.proximalLogprobs == 'Recompute'")
        .message("behaviorWeight needs proximalLogprobs Recompute: with the log-probabilities of \
                 the sampler, every weight is 1")
)]
#[x_kube(
    validation = Rule::new("!has(self.secondMomentLimit) || self.proximalLogprobs == 'Recompute'")
        .message("secondMomentLimit needs proximalLogprobs Recompute: with the log-probabilities \
                 of the sampler, every moment is 0")
)]
#[x_kube(
    validation = Rule::new("self.groupSize > 1 || self.rewardNormalization.mean != 'Group' && \
             (self.rewardNormalization.scale == 'None' || \
             self.rewardNormalization.scaleLevel == 'Batch')")
        .message("groupSize 1 needs rewardNormalization with mean Batch or None, and with \
                 scaleLevel Batch or scale None: a group of one sample is normalized by nothing \
                 but itself")
)]
#[x_kube(
    validation = Rule::new("self.groupSize > 1 || !has(self.advantageNormalization) || \
             self.advantageNormalization.mean != 'Group' && \
             (self.advantageNormalization.scale == 'None' || \
             self.advantageNormalization.scaleLevel == 'Batch')")
        .message("groupSize 1 needs advantageNormalization with mean Batch or None, and with \
                 scaleLevel Batch or scale None: a group of one sample is normalized by nothing \
                 but itself")
)]
#[x_kube(
    validation = Rule::new("!has(self.distillation) || self.klCoefficient == 0.0")
        .message("klCoefficient is not used with distillation: the teacher takes the place of the \
                 reference model; remove one of them")
)]
pub struct GrpoSpec {
    /// Samples per prompt, whose rewards are normalized together. 1 for REINFORCE++ (arXiv
    /// 2501.03262), which normalizes over the batch. Default 8.
    #[serde(default = "group_size")]
    #[schemars(range(min = 1, max = 1024))]
    pub group_size: u32,
    /// Passes over the batch of a step, each of `training.minibatches` updates. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub epochs: u32,
    /// Loss of a token. Default Clip.
    #[serde(default)]
    pub surrogate: Surrogate,
    /// Tokens over which the importance ratio is taken. Default Token.
    #[serde(default)]
    pub ratio_level: RatioLevel,
    /// Temperatures of surrogate SAPO. Default those of its paper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sapo: Option<SapoSpec>,
    /// Lower clip of the importance ratio at 1 − clipLow. Default 0.2.
    #[serde(default = "clip")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub clip_low: f64,
    /// Upper clip of the importance ratio at 1 + clipHigh. Default 0.2.
    #[serde(default = "clip")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub clip_high: f64,
    /// Dual clip (Ye et al., arXiv 1912.09729): upper bound cClip · |advantage| of a token's loss.
    /// Default no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 1000.0))]
    pub c_clip: Option<f64>,
    /// Aggregation of token losses. Default Token.
    #[serde(default)]
    pub loss_aggregation: LossAggregation,
    /// Penalty on samples whose trained tokens approach the maximum: `rollout.maxNewTokens`, or in
    /// a workflow the smaller of `maxTurns` · `rollout.maxNewTokens` and `maxTokens` (DAPO, arXiv
    /// 2503.14476). Default no penalty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlong_penalty: Option<OverlongPenalty>,
    /// Transformation of rewards before their normalization: (reward + bias) · scale, clipped.
    #[serde(default)]
    pub reward_shaping: RewardShaping,
    /// Normalization of rewards to advantages. Default by mean and standard deviation of the group.
    #[serde(default)]
    pub reward_normalization: NormalizationSpec,
    /// Second normalization, of advantages over trainable tokens. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage_normalization: Option<NormalizationSpec>,
    /// Coefficient of the KL divergence per token from the model before training. With 0, learners
    /// hold no reference model. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub kl_coefficient: f64,
    /// Estimator of the KL divergence (joschu.net/blog/kl-approx.html), clipped to ± 10 per token.
    /// Default K1.
    #[serde(default)]
    pub kl_estimator: KlEstimator,
    /// Term that contains the KL divergence. Default Reward.
    #[serde(default)]
    pub kl_term: KlTerm,
    /// Learns from a teacher, too; without `klCoefficient`. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distillation: Option<JointDistillation>,
    /// Coefficient of the policy's entropy in nats at each trained token, which is subtracted from
    /// its loss (equation 9 of PPO, arXiv 1707.06347). Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub entropy_coefficient: f64,
    /// Log-probabilities in the denominator of the importance ratio. Default Recompute.
    #[serde(default)]
    pub proximal_logprobs: ProximalLogprobs,
    /// Decoupled PPO (arXiv 2505.24298): factor exp(proximal − sampler log-probability) of each
    /// token's loss, with bounds. Default no factor with `rollout.maxStaleness` 0 or the
    /// log-probabilities of the sampler, else `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior_weight: Option<BehaviorWeight>,
    /// M2PO (arXiv 2510.01161): tokens with the largest (proximal − sampler log-probability)² have
    /// no loss, so that the mean of the others is below this limit. Their number stays in the
    /// denominator of the mean. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub second_moment_limit: Option<f64>,
}

fn group_size() -> u32 {
    8
}

fn one() -> u32 {
    1
}

fn clip() -> f64 {
    0.2
}

impl GrpoSpec {
    /// Reward that is normalized: with overlong penalty, shaped and clipped. `tokens` is the number
    /// of trained tokens, `max_tokens` its maximum.
    pub fn shaped_reward(&self, reward: f64, tokens: u32, max_tokens: u32) -> f64 {
        let penalty = self.overlong_penalty.as_ref().map_or(0.0, |overlong| {
            let start = f64::from(max_tokens) - f64::from(overlong.tokens);
            let share = (f64::from(tokens) - start) / f64::from(overlong.tokens);
            -share.clamp(0.0, 1.0) * overlong.factor
        });
        let shaping = &self.reward_shaping;
        ((reward + penalty + shaping.bias) * shaping.scale).clamp(-shaping.clip, shaping.clip)
    }

    /// The behavior weight of the loss. Samples of weights older than the step's would else be
    /// trained on as if they were on-policy: with recomputed log-probabilities, the default is
    /// bounds of 5 as in AReaL (arXiv 2505.24298).
    pub fn effective_behavior_weight(&self, rollout: &RolloutSpec) -> Option<BehaviorWeight> {
        let is_off_policy = rollout.max_staleness > 0;
        let is_recomputed = self.proximal_logprobs == ProximalLogprobs::Recompute;
        let default = (is_off_policy && is_recomputed).then(BehaviorWeight::default);
        self.behavior_weight.clone().or(default)
    }
}

impl Default for GrpoSpec {
    fn default() -> Self {
        Self {
            group_size: group_size(),
            epochs: one(),
            surrogate: Surrogate::default(),
            ratio_level: RatioLevel::default(),
            sapo: None,
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
            distillation: None,
            entropy_coefficient: 0.0,
            proximal_logprobs: ProximalLogprobs::default(),
            behavior_weight: None,
            second_moment_limit: None,
        }
    }
}

/// Aggregation of the token losses of a minibatch.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum LossAggregation {
    /// Mean over trainable tokens: long completions have more weight (DAPO).
    #[default]
    Token,
    /// Mean over completions of the mean over their tokens (original GRPO).
    Sequence,
    /// Sum ÷ (completions · `rollout.maxNewTokens`): the weight of a token does not depend on the
    /// length of its completion (Dr. GRPO, arXiv 2503.20783).
    Constant,
}

/// Penalty that increases linearly over the last tokens before the maximum of a sample.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OverlongPenalty {
    /// Number of tokens over which the penalty increases from 0 to `factor`.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub tokens: u32,
    /// Penalty of a sample with the maximum number of tokens. Default 1.
    #[serde(default = "unity")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub factor: f64,
}

fn unity() -> f64 {
    1.0
}

/// (reward + bias) · scale, clipped to ± clip.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardShaping {
    /// Added to every reward. Default 0.
    #[serde(default)]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub bias: f64,
    /// Factor. Default 1.
    #[serde(default = "unity")]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub scale: f64,
    /// Maximum absolute value. Default 20.
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

/// Estimator of a KL divergence from samples, with x = policy − reference log-probability.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum KlEstimator {
    /// x: unbiased, positive or negative.
    #[default]
    K1,
    /// x² ÷ 2: biased, never negative.
    K2,
    /// e⁻ˣ − 1 + x: unbiased, never negative.
    K3,
}

/// Term that contains the KL divergence from the reference model.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum KlTerm {
    /// Subtracted from each token's reward. Computed from the sampler's log-probabilities, or from
    /// recomputed ones if there are any and behaviorWeight is not set. The advantage of a token
    /// contains the divergence of the token and its successors.
    #[default]
    Reward,
    /// Added to the loss, from the learner's log-probabilities, with gradient.
    Loss,
}

/// Log-probabilities in the denominator of the importance ratio.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum ProximalLogprobs {
    /// Log-probabilities of the learner before the first update of the step. With one minibatch,
    /// the ratio is 1 and nothing is recomputed.
    #[default]
    Recompute,
    /// The sampler's log-probabilities (PPO without decoupling).
    Sampler,
}
