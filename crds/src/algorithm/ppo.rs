//! Settings of `ppo`, in the order in which the learner's objective uses them.
//!
//! ```text
//!  reward ─ overlongPenalty ─ rewardShaping ─ rewardNormalization
//!    ─▶ reward of the last token
//!  (− klCoefficient, which adaptiveKl changes, · KL of each token)
//!    ─ gaeTimestep, discount, gaeLambda or adaptiveLambda, values of the critic, or of valueHead
//!    ─▶ return of each token, with criticLambda ─ valueNormalization ─ valueClip
//!       ─▶ loss of the critic, × valueHead.lossWeight
//!    ─▶ advantage ─ advantageNormalization ─ surrogate of `grpo` with clipLow, clipHigh,
//!       cClip, behaviorWeight, lossAggregation ─▶ loss of the policy, after criticWarmupSteps
//!  Without `valueHead`, the critic is a second model; with it, an output of the policy.
//! ```

mod advantages;
mod capabilities;
mod critic;
mod gae;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

pub use advantages::AdvantageNormalization;
pub use critic::{ValueHead, ValueNormalization};
pub use gae::{AdaptiveLambda, GaeTimestep, LengthLambda, PositionLambda};

use super::grpo::{
    BehaviorWeight, GrpoSpec, KlEstimator, KlTerm, LossAggregation, NormalizationMean,
    NormalizationScale, NormalizationSpec, OverlongPenalty, ProximalLogprobs, RewardShaping,
};
use crate::optimizer::OptimizerSpec;

/// Settings of `ppo`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.behaviorWeight) || self.proximalLogprobs == 'Recompute'")
        .message("behaviorWeight needs proximalLogprobs Recompute: with the log-probabilities of \
                 the sampler, every weight is 1")
)]
#[x_kube(
    validation = Rule::new("self.groupSize > 1 || !has(self.rewardNormalization) || \
             self.rewardNormalization.mean != 'Group' && \
             (self.rewardNormalization.scale == 'None' || \
             self.rewardNormalization.scaleLevel == 'Batch')")
        .message("groupSize 1 needs rewardNormalization with mean Batch or None, and with \
                 scaleLevel Batch or scale None: a group of one sample is normalized by nothing \
                 but itself")
)]
#[x_kube(
    validation = Rule::new("self.groupSize > 1 || self.advantageNormalization.mean != 'Group' && \
             (self.advantageNormalization.scale == 'None' || \
             self.advantageNormalization.scaleLevel == 'Batch')")
        .message("groupSize 1 needs advantageNormalization with mean Batch or None, and with \
                 scaleLevel Batch or scale None: a group of one sample is normalized by nothing \
                 but itself")
)]
#[x_kube(
    validation = Rule::new("!has(self.adaptiveKl) || self.klCoefficient > 0.0")
        .message("adaptiveKl needs a klCoefficient above 0, with which it begins")
)]
#[x_kube(
    validation = Rule::new("!has(self.adaptiveLambda) || self.gaeLambda == 1.0")
        .message("gaeLambda is not used with adaptiveLambda; remove it")
)]
#[x_kube(
    validation = Rule::new("!has(self.valueHead) || !has(self.criticOptimizer)")
        .message("criticOptimizer is not used with valueHead, which has the settings of \
                 spec.optimizer and valueHead.learningRate; remove it")
)]
pub struct PpoSpec {
    /// Samples per prompt. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub group_size: u32,
    /// Passes over the batch of a step, each of `training.minibatches` updates. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub epochs: u32,
    /// Time steps of advantages and returns. Default Token.
    #[serde(default)]
    pub gae_timestep: GaeTimestep,
    /// Discount γ per time step. Default 1.
    #[serde(default = "unity")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub discount: f64,
    /// λ of Generalized Advantage Estimation (Schulman et al., arXiv 1506.02438): 1 is the return
    /// minus the value, without bias of the critic; lower values have less variance. Default 1.
    #[serde(default = "unity")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gae_lambda: f64,
    /// λ of each sample as a function of its length, in place of `gaeLambda`. Default that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive_lambda: Option<AdaptiveLambda>,
    /// λ of the returns that the critic learns (decoupled GAE, arXiv 2503.01491); VAPO has 1.
    /// Default that of the advantages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub critic_lambda: Option<f64>,
    /// Bound of a value's change from the critic before the step, beyond which its loss has no
    /// gradient; 0 disables it. In the unit of rewards, or with `valueNormalization` in standard
    /// deviations. Default 0.5.
    #[serde(default = "value_clip")]
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub value_clip: f64,
    /// Normalizes the returns that the critic learns by their running mean and standard deviation.
    /// Default no normalization: values are in the unit of rewards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_normalization: Option<ValueNormalization>,
    /// Makes the critic a linear layer on the policy's final norm, with one output for each token,
    /// instead of a second model. One pass computes the losses of both, and the gradient of both
    /// reaches the policy's weights. Default a critic of the policy's size with weights that the
    /// policy does not share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_head: Option<ValueHead>,
    /// Steps at the start that train the critic only; of a policy with `valueHead`, the head only.
    /// Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub critic_warmup_steps: u32,
    /// Optimizer of the critic, not with `valueHead`. Default the settings of `spec.optimizer`;
    /// fields that are left out of a setting have the defaults of an optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic_optimizer: Option<OptimizerSpec>,
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
    /// Aggregation of token losses, of the policy and of the critic. Default Token.
    #[serde(default)]
    pub loss_aggregation: LossAggregation,
    /// Penalty on samples whose trained tokens approach the maximum: `rollout.maxNewTokens`, or in
    /// a workflow the smaller of `maxTurns` · `rollout.maxNewTokens` and `maxTokens` (DAPO, arXiv
    /// 2503.14476). Default no penalty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlong_penalty: Option<OverlongPenalty>,
    /// Transformation of rewards: (reward + bias) · scale, clipped.
    #[serde(default)]
    pub reward_shaping: RewardShaping,
    /// Normalization of rewards before they are the return of a token. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_normalization: Option<NormalizationSpec>,
    /// Normalization of advantages over trainable tokens. Default by mean and standard deviation of
    /// the batch; `{mean: None, scale: None}` disables it.
    #[serde(default)]
    pub advantage_normalization: AdvantageNormalization,
    /// Coefficient of the KL divergence per token from the model before training. With 0, learners
    /// hold no reference model. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub kl_coefficient: f64,
    /// Changes the coefficient of the KL divergence after each step, so that the divergence
    /// approaches a target. Default a constant coefficient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive_kl: Option<AdaptiveKl>,
    /// Estimator of the KL divergence (joschu.net/blog/kl-approx.html), clipped to ± 10 per token.
    /// Default K1.
    #[serde(default)]
    pub kl_estimator: KlEstimator,
    /// Term that contains the KL divergence. Default Reward.
    #[serde(default)]
    pub kl_term: KlTerm,
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
}

/// Controller of the KL coefficient (Ziegler et al., arXiv 1909.08593). After a step of n samples
/// with the mean divergence `referenceKl`, the coefficient is multiplied by 1 + e · n ÷ horizon,
/// where e is referenceKl ÷ target − 1 within ± 0.2 and n ÷ horizon is at most 1. Checkpoints
/// contain the coefficient; the metric `klCoefficient` is that of a step.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdaptiveKl {
    /// Divergence to approach, in nats per token.
    #[schemars(range(min = 0.000_001, max = 10.0))]
    pub target: f64,
    /// Samples after which a constant e has changed the coefficient by about the factor exp(e).
    /// Default 10000.
    #[serde(default = "horizon")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub horizon: u32,
}

fn horizon() -> u32 {
    10_000
}

fn one() -> u32 {
    1
}

fn unity() -> f64 {
    1.0
}

fn value_clip() -> f64 {
    0.5
}

fn clip() -> f64 {
    0.2
}

impl PpoSpec {
    /// Settings of rewards and of the policy's loss, which are those of `grpo`: its advantages are
    /// replaced by the estimates of the critic.
    pub fn grpo(&self) -> GrpoSpec {
        let none = NormalizationSpec {
            mean: NormalizationMean::None,
            scale: NormalizationScale::None,
            ..NormalizationSpec::default()
        };
        GrpoSpec {
            group_size: self.group_size,
            epochs: self.epochs,
            clip_low: self.clip_low,
            clip_high: self.clip_high,
            c_clip: self.c_clip,
            loss_aggregation: self.loss_aggregation,
            overlong_penalty: self.overlong_penalty.clone(),
            reward_shaping: self.reward_shaping.clone(),
            reward_normalization: self.reward_normalization.clone().unwrap_or(none),
            advantage_normalization: Some(self.advantage_normalization.clone().into()),
            kl_coefficient: self.kl_coefficient,
            kl_estimator: self.kl_estimator,
            kl_term: self.kl_term,
            entropy_coefficient: self.entropy_coefficient,
            proximal_logprobs: self.proximal_logprobs,
            behavior_weight: self.behavior_weight.clone(),
            ..GrpoSpec::default()
        }
    }
}

impl Default for PpoSpec {
    fn default() -> Self {
        Self {
            group_size: one(),
            epochs: one(),
            gae_timestep: GaeTimestep::default(),
            discount: unity(),
            gae_lambda: unity(),
            adaptive_lambda: None,
            critic_lambda: None,
            value_clip: value_clip(),
            value_normalization: None,
            value_head: None,
            critic_warmup_steps: 0,
            critic_optimizer: None,
            clip_low: clip(),
            clip_high: clip(),
            c_clip: None,
            loss_aggregation: LossAggregation::default(),
            overlong_penalty: None,
            reward_shaping: RewardShaping::default(),
            reward_normalization: None,
            advantage_normalization: AdvantageNormalization::default(),
            kl_coefficient: 0.0,
            adaptive_kl: None,
            kl_estimator: KlEstimator::default(),
            kl_term: KlTerm::default(),
            entropy_coefficient: 0.0,
            proximal_logprobs: ProximalLogprobs::default(),
            behavior_weight: None,
        }
    }
}
