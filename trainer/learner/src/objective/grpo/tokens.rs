//! Inputs of the loss of tokens, and the sums over tokens that become metrics.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_protocol::metrics::{
    BEHAVIOR_BOUNDED, BEHAVIOR_WEIGHT, CLIP_FRACTION_DUAL, CLIP_FRACTION_LOWER,
    CLIP_FRACTION_UPPER, KL, MISMATCH_MAX, MISMATCH_MEAN, REFERENCE_KL,
};
use tch::{Kind, Tensor};

use crate::objective::behavior::Weights;
use crate::objective::deferred::Deferred;
use crate::objective::statistics::{Statistic, Statistics};

/// Inputs of the loss, each `[N]`, and fp32 except for the index.
#[derive(Clone, Copy, Debug)]
pub struct LossInput<'a> {
    /// Log-probabilities under the current policy.
    pub policy_logprobs_N: &'a Tensor,
    /// Log-probabilities that the ratio is taken against; absent if they are the current policy's.
    pub proximal_logprobs_N: Option<&'a Tensor>,
    /// Log-probabilities under the sampler's policy, for metrics.
    pub sampler_logprobs_N: &'a Tensor,
    /// Log-probabilities under the reference model.
    pub reference_logprobs_N: Option<&'a Tensor>,
    pub advantages_N: &'a Tensor,
    /// Weights in the minibatch's loss.
    pub weights_N: &'a Tensor,
    /// Index of the token's sequence.
    pub sequence_N: &'a Tensor,
    pub behavior: Option<&'a Weights>,
}

/// Sums over tokens, and a maximum.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(PartialEq))]
pub struct LossSums {
    /// Weighted loss.
    pub loss: Deferred,
    /// Tokens whose ratio was clipped at the upper bound.
    pub clipped_upper: Deferred,
    /// Tokens whose ratio was clipped at the lower bound.
    pub clipped_lower: Deferred,
    /// Tokens whose loss was bounded by the dual clip.
    pub clipped_dual: Deferred,
    /// k3 estimates (Schulman, joschu.net/blog/kl-approx.html) of KL(sampler ‖ policy):
    /// eᵈ − 1 − d with d = policy − sampler.
    pub kl: Deferred,
    /// |policy − sampler|, nats.
    pub mismatch: Deferred,
    /// Largest |policy − sampler|, nats.
    pub mismatch_max: Deferred,
    /// Estimates of KL(policy ‖ reference).
    pub reference_kl: Deferred,
    /// Behavior weights, 0 where masked.
    pub behavior_weight: Deferred,
    /// Tokens whose behavior weight was masked or clamped.
    pub behavior_bounded: Deferred,
}

impl LossSums {
    /// Difference between policy and sampler; the other sums are 0.
    pub fn mismatch(policy_N: &Tensor, sampler_N: &Tensor) -> Self {
        let difference_N = policy_N - sampler_N;
        // fp64, because eᵈ − 1 − d of a small d is rounded to 0 or below in fp32.
        let k3_N = difference_N.to_kind(Kind::Double).expm1() - difference_N.to_kind(Kind::Double);
        let mismatch_N = difference_N.abs();
        Self {
            kl: Deferred::sum(&k3_N),
            mismatch: Deferred::sum(&mismatch_N),
            mismatch_max: Deferred::max(&mismatch_N),
            ..Self::default()
        }
    }

    /// The sums by the names of their metrics.
    pub(super) fn statistics(self) -> Statistics {
        Statistics::new([
            (Statistic::Mean(CLIP_FRACTION_UPPER), self.clipped_upper),
            (Statistic::Mean(CLIP_FRACTION_LOWER), self.clipped_lower),
            (Statistic::Mean(CLIP_FRACTION_DUAL), self.clipped_dual),
            (Statistic::Mean(REFERENCE_KL), self.reference_kl),
            (Statistic::Mean(BEHAVIOR_WEIGHT), self.behavior_weight),
            (Statistic::Mean(BEHAVIOR_BOUNDED), self.behavior_bounded),
            (Statistic::Mean(KL), self.kl),
            (Statistic::Mean(MISMATCH_MEAN), self.mismatch),
            (Statistic::Max(MISMATCH_MAX), self.mismatch_max),
        ])
    }

    /// Those of [`Self::mismatch`].
    pub(super) fn mismatch_statistics(self) -> Statistics {
        Statistics::new([
            (Statistic::Mean(KL), self.kl),
            (Statistic::Mean(MISMATCH_MEAN), self.mismatch),
            (Statistic::Max(MISMATCH_MAX), self.mismatch_max),
        ])
    }
}
