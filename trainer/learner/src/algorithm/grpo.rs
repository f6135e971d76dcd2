//! Group Relative Policy Optimization (Shao et al., arXiv 2402.03300): the clipped surrogate of the
//! trained tokens and its derivative by hand.
//!
//! ```text
//!  ρ = exp(logp − proximal)
//!  L = max(−A ρ, −A clip(ρ, 1 − low, 1 + high))          asymmetric bounds: DAPO, Yu et al., arXiv 2503.14476
//!  L = min(L, c |A|)                                     dual clip: Ye et al., arXiv 1912.09729; it bites for A < 0 only
//!  loss = Σ weight · (behaviour weight · L + klCoefficient · KL)
//!  dL/dlogp = −A ρ where that is the value of L (or equal to the clipped one), else 0
//! ```
//! Without proximal log-probabilities they are the learner's own: ρ = 1 and the derivative is −A.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::grpo::{GrpoSpec, KlTerm};
use tch::{Kind, Tensor};

use super::behavior::Weights;
use super::kl;

/// What the loss is computed from, each `[N]`.
#[derive(Clone, Copy, Debug)]
pub struct LossInput<'a> {
    /// The learner's log-probabilities now, fp32.
    pub learner_logprobs_N: &'a Tensor,
    /// What the ratio is taken against, fp32; none where that is the learner's own now.
    pub proximal_logprobs_N: Option<&'a Tensor>,
    /// The sampler's, for metrics, fp32.
    pub sampler_logprobs_N: &'a Tensor,
    /// The reference model's, fp32.
    pub reference_logprobs_N: Option<&'a Tensor>,
    /// The tokens' advantages, fp32.
    pub advantages_N: &'a Tensor,
    /// The tokens' weights in the minibatch's loss, fp32.
    pub weights_N: &'a Tensor,
    /// The behaviour weights.
    pub behavior: Option<&'a Weights>,
}

/// Sums over the tokens given; those of several micro-batches and ranks add up, but `mismatch_max`
/// takes the larger.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct LossSums {
    /// The loss, weighted.
    pub loss: f64,
    /// Tokens whose ratio was clipped at the upper bound.
    pub clipped_upper: f64,
    /// Tokens whose ratio was clipped at the lower bound.
    pub clipped_lower: f64,
    /// Tokens whose loss was bounded by the dual clip.
    pub clipped_dual: f64,
    /// Estimate k3 (Schulman, joschu.net/blog/kl-approx.html) of KL(sampler ‖ learner): eᵈ − 1 − d
    /// with d = learner − sampler.
    pub kl: f64,
    /// |learner − sampler|, nats.
    pub mismatch: f64,
    /// Largest |learner − sampler|, nats.
    pub mismatch_max: f64,
    /// Estimates of KL(learner ‖ reference).
    pub reference_kl: f64,
    /// Behaviour weights.
    pub behavior_weight: f64,
    /// Tokens whose behaviour weight was masked or clamped.
    pub behavior_bounded: f64,
}

impl LossSums {
    /// The sums of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            loss: self.loss + other.loss,
            clipped_upper: self.clipped_upper + other.clipped_upper,
            clipped_lower: self.clipped_lower + other.clipped_lower,
            clipped_dual: self.clipped_dual + other.clipped_dual,
            kl: self.kl + other.kl,
            mismatch: self.mismatch + other.mismatch,
            mismatch_max: self.mismatch_max.max(other.mismatch_max),
            reference_kl: self.reference_kl + other.reference_kl,
            behavior_weight: self.behavior_weight + other.behavior_weight,
            behavior_bounded: self.behavior_bounded + other.behavior_bounded,
        }
    }

    /// How far the learner is from the sampler; the other sums are 0.
    pub fn mismatch(learner_N: &Tensor, sampler_N: &Tensor) -> Self {
        let difference_N = learner_N - sampler_N;
        // In fp64, where it is never negative: fp32 loses eᵈ − 1 − d of a small d whole.
        let k3_N = difference_N.to_kind(Kind::Double).expm1() - difference_N.to_kind(Kind::Double);
        let mismatch_N = difference_N.abs();
        Self {
            kl: sum(&k3_N),
            mismatch: sum(&mismatch_N),
            mismatch_max: if mismatch_N.numel() == 0 {
                0.0
            } else {
                mismatch_N.max().double_value(&[])
            },
            ..Self::default()
        }
    }
}

/// (derivative of the loss by each learner log-probability `[N]`, sums).
pub fn loss(spec: &GrpoSpec, input: &LossInput<'_>) -> (Tensor, LossSums) {
    let mut sums = LossSums::mismatch(input.learner_logprobs_N, input.sampler_logprobs_N);
    let (mut loss_N, mut gradient_N) = surrogate(spec, input, &mut sums);
    if let Some(behavior) = input.behavior {
        sums.behavior_weight = sum(&behavior.weight_N);
        sums.behavior_bounded = sum(&behavior.bounded_N);
        // Not by multiplication alone: a masked token's loss may be infinite.
        let masked_N = behavior.weight_N.eq(0.0);
        loss_N = (loss_N * &behavior.weight_N).masked_fill(&masked_N, 0.0);
        gradient_N = (gradient_N * &behavior.weight_N).masked_fill(&masked_N, 0.0);
    }
    if let Some(reference_N) = input.reference_logprobs_N {
        let (kl_N, slope_N) =
            kl::estimate(spec.kl_estimator, input.learner_logprobs_N, reference_N);
        sums.reference_kl = sum(&kl_N);
        if spec.kl_term == KlTerm::Loss {
            loss_N += kl_N * spec.kl_coefficient;
            gradient_N += slope_N * spec.kl_coefficient;
        }
    }
    sums.loss = sum(&(loss_N * input.weights_N));
    (gradient_N * input.weights_N, sums)
}

/// L and its derivative, each `[N]`; counts what was clipped.
fn surrogate(spec: &GrpoSpec, input: &LossInput<'_>, sums: &mut LossSums) -> (Tensor, Tensor) {
    let advantages_N = input.advantages_N;
    let proximal_N = input.proximal_logprobs_N.unwrap_or(input.learner_logprobs_N);
    let ratio_N = (input.learner_logprobs_N - proximal_N).exp();
    let free_N = -(advantages_N * &ratio_N);
    let clipped_N = -(advantages_N * ratio_N.clamp(1.0 - spec.clip_low, 1.0 + spec.clip_high));
    let is_clipped_N = free_N.lt_tensor(&clipped_N);
    let is_positive_N = advantages_N.gt(0.0);
    sums.clipped_upper = sum(&is_clipped_N.logical_and(&is_positive_N));
    sums.clipped_lower = sum(&is_clipped_N.logical_and(&is_positive_N.logical_not()));
    let loss_N = free_N.maximum(&clipped_N);
    let Some(c_clip) = spec.c_clip else {
        return (loss_N, free_N.masked_fill(&is_clipped_N, 0.0));
    };
    let bound_N = advantages_N.abs() * c_clip;
    let is_bounded_N = bound_N.lt_tensor(&loss_N);
    sums.clipped_dual = sum(&is_bounded_N);
    (loss_N.minimum(&bound_N), free_N.masked_fill(&is_clipped_N.logical_or(&is_bounded_N), 0.0))
}

fn sum(tensor: &Tensor) -> f64 {
    tensor.sum(Kind::Double).double_value(&[])
}

#[cfg(test)]
mod tests;
