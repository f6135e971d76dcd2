//! Group Relative Policy Optimization (Shao et al., arXiv 2402.03300): clipped surrogate with a
//! derivative written by hand.
//!
//! ```text
//!  ρ = exp(logp − proximal)
//!  L = max(−A ρ, −A clip(ρ, 1 − low, 1 + high))    asymmetric bounds: DAPO, arXiv 2503.14476
//!  L = min(L, c |A|)                               dual clip, for A < 0: arXiv 1912.09729
//!  loss = Σ weight · (behavior weight · L + klCoefficient · KL)
//!  dL/dlogp = −A ρ where −A ρ is the value of L, else 0
//! ```
//! Without proximal log-probabilities the current policy's are used: ρ = 1, and the derivative is
//! −A.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::RolloutSpec;
use rljob_crds::grpo::{BehaviorLevel, GrpoSpec, KlTerm, NormalizationSpec, ProximalLogprobs};
use rljob_protocol::batch::SampleRow;
use rljob_protocol::metrics::{
    BEHAVIOR_BOUNDED, BEHAVIOR_WEIGHT, CLIP_FRACTION, CLIP_FRACTION_DUAL, CLIP_FRACTION_LOWER,
    CLIP_FRACTION_UPPER, KL, MISMATCH_MAX, MISMATCH_MEAN, REFERENCE_KL,
};
use tch::{Kind, Tensor};

use super::advantages::StepAdvantages;
use super::behavior::{self, Weights};
use super::interface::{Objective, Signal, SumError, SumOverRanks, TokenLoss};
use super::kl;
use super::normalization::{Grouped, Totals, normalized, squares, totals};
use super::statistics::{Statistic, Statistics};
use super::streams::{TokenStreams, doubles, fp32};
use crate::model::TokenLogprobs;

/// The objective with its settings; `spec.behavior_weight` is the effective one.
#[derive(Clone, Debug)]
pub struct Grpo {
    pub spec: GrpoSpec,
    pub rollout: RolloutSpec,
}

impl Objective for Grpo {
    fn signals(&self, minibatches: u32) -> Vec<Signal> {
        let by_sequence = self
            .spec
            .behavior_weight
            .as_ref()
            .is_some_and(|bounds| bounds.level == BehaviorLevel::Sequence);
        // With one update and per-token bounds, the pass with gradients provides them.
        let proximal = self.spec.proximal_logprobs == ProximalLogprobs::Recompute
            && (minibatches > 1 || by_sequence);
        let reference = (self.spec.kl_coefficient > 0.0).then_some(Signal::Reference);
        reference.into_iter().chain(proximal.then_some(Signal::Proximal)).collect()
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        StepAdvantages::from_rewards(&self.spec, &self.rollout, samples)
    }

    fn prepare(
        &self,
        advantages: &StepAdvantages,
        streams: &mut [&mut TokenStreams],
        sum: &SumOverRanks<'_>,
    ) -> Result<Statistics, SumError> {
        if self.spec.kl_term == KlTerm::Reward {
            for streams in streams.iter_mut() {
                subtract_kl(&self.spec, streams);
            }
        }
        if let Some(spec) = &self.spec.advantage_normalization {
            normalize_over_tokens(spec, advantages.groups, streams, sum)?;
        }
        let mut statistics = Statistics::default();
        for streams in streams.iter_mut() {
            let sampler_N = &streams.sampler_logprobs_N;
            if let Some(proximal_N) = &streams.proximal_logprobs_N {
                let mismatch = LossSums::mismatch(proximal_N, sampler_N);
                statistics = statistics.plus(mismatch.mismatch_statistics());
            } else if self.spec.proximal_logprobs == ProximalLogprobs::Sampler {
                streams.proximal_logprobs_N = Some(sampler_N.shallow_clone());
            }
            streams.behavior = self.spec.behavior_weight.as_ref().and_then(|bounds| {
                let proximal_N = streams.proximal_logprobs_N.as_ref()?;
                let (sampler_N, sequence_N) = (&streams.sampler_logprobs_N, &streams.sequence_N);
                Some(behavior::weights(bounds, proximal_N, sampler_N, sequence_N))
            });
        }
        Ok(statistics)
    }

    fn loss(&self, policy: &TokenLogprobs, streams: &TokenStreams) -> TokenLoss {
        let policy_N = &policy.logprobs_N;
        let bounds = self.spec.behavior_weight.as_ref().filter(|_| streams.behavior.is_none());
        // The proximal policy is the current one, and the bounds apply to single tokens.
        let of_policy = bounds.map(|bounds| {
            let (sampler_N, sequence_N) = (&streams.sampler_logprobs_N, &streams.sequence_N);
            behavior::weights(bounds, policy_N, sampler_N, sequence_N)
        });
        let input = LossInput {
            policy_logprobs_N: policy_N,
            proximal_logprobs_N: streams.proximal_logprobs_N.as_ref(),
            sampler_logprobs_N: &streams.sampler_logprobs_N,
            reference_logprobs_N: streams.reference_logprobs_N.as_ref(),
            advantages_N: &streams.advantages_N,
            weights_N: &streams.weights_N,
            behavior: of_policy.as_ref().or(streams.behavior.as_ref()),
        };
        let (gradient_N, sums) = loss(&self.spec, &input);
        TokenLoss { gradient_N, loss: sums.loss, statistics: sums.statistics() }
    }

    fn statistics(&self) -> Vec<Statistic> {
        let means = [CLIP_FRACTION_UPPER, CLIP_FRACTION_LOWER, KL, MISMATCH_MEAN];
        let dual = self.spec.c_clip.map(|_| CLIP_FRACTION_DUAL);
        let reference = (self.spec.kl_coefficient > 0.0).then_some(REFERENCE_KL);
        let behavior =
            self.spec.behavior_weight.as_ref().map(|_| [BEHAVIOR_WEIGHT, BEHAVIOR_BOUNDED]);
        let optional = dual.into_iter().chain(reference).chain(behavior.into_iter().flatten());
        let means = means.into_iter().chain(optional).map(Statistic::Mean);
        means.chain([Statistic::Max(MISMATCH_MAX)]).collect()
    }

    fn derived(&self, reduced: &dyn Fn(&str) -> f64) -> Vec<(&'static str, f64)> {
        vec![(CLIP_FRACTION, reduced(CLIP_FRACTION_UPPER) + reduced(CLIP_FRACTION_LOWER))]
    }
}

/// Subtracts the KL penalty from the advantages. Without decoupling, the divergence is that of the
/// recomputed log-probabilities where there are any, as in AReaL (`PPOActor.compute_advantages`).
fn subtract_kl(spec: &GrpoSpec, streams: &mut TokenStreams) {
    let Some(reference_N) = &streams.reference_logprobs_N else { return };
    let recomputed_N = streams.proximal_logprobs_N.as_ref();
    let recomputed_N = recomputed_N.filter(|_| spec.behavior_weight.is_none());
    let policy_N = recomputed_N.unwrap_or(&streams.sampler_logprobs_N);
    let (estimates_N, _) = kl::estimate(spec.kl_estimator, policy_N, reference_N);
    let penalties =
        kl::penalties(spec.kl_coefficient, &doubles(&estimates_N), &streams.sequences());
    let device = streams.advantages_N.device();
    streams.advantages_N = &streams.advantages_N - fp32(&penalties, device);
}

/// Normalizes the advantages over the trainable tokens of all ranks.
fn normalize_over_tokens(
    spec: &NormalizationSpec,
    groups: usize,
    streams: &mut [&mut TokenStreams],
    sum: &SumOverRanks<'_>,
) -> Result<(), SumError> {
    let grouped = |streams: &&mut TokenStreams| {
        doubles(&streams.advantages_N).into_iter().zip(streams.token_groups()).collect()
    };
    let values: Vec<Vec<Grouped>> = streams.iter().map(grouped).collect();
    let all: Vec<Grouped> = values.concat();
    let mut parts = totals(&all, groups);
    sum(&mut parts)?;
    let totals = Totals::new(parts);
    let mut deviations = squares(spec, &all, &totals);
    sum(&mut deviations)?;
    for (streams, values) in streams.iter_mut().zip(&values) {
        let advantages = normalized(spec, values, &totals, &deviations);
        streams.advantages_N = fp32(&advantages, streams.advantages_N.device());
    }
    Ok(())
}

/// Inputs of the loss, each `[N]` and fp32.
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
    pub behavior: Option<&'a Weights>,
}

/// Sums over tokens, and a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct LossSums {
    /// Weighted loss.
    pub loss: f64,
    /// Tokens whose ratio was clipped at the upper bound.
    pub clipped_upper: f64,
    /// Tokens whose ratio was clipped at the lower bound.
    pub clipped_lower: f64,
    /// Tokens whose loss was bounded by the dual clip.
    pub clipped_dual: f64,
    /// k3 estimates (Schulman, joschu.net/blog/kl-approx.html) of KL(sampler ‖ policy):
    /// eᵈ − 1 − d with d = policy − sampler.
    pub kl: f64,
    /// |policy − sampler|, nats.
    pub mismatch: f64,
    /// Largest |policy − sampler|, nats.
    pub mismatch_max: f64,
    /// Estimates of KL(policy ‖ reference).
    pub reference_kl: f64,
    /// Behavior weights, 0 where masked.
    pub behavior_weight: f64,
    /// Tokens whose behavior weight was masked or clamped.
    pub behavior_bounded: f64,
}

impl LossSums {
    /// Difference between policy and sampler; the other sums are 0.
    pub fn mismatch(policy_N: &Tensor, sampler_N: &Tensor) -> Self {
        let difference_N = policy_N - sampler_N;
        // fp64, because eᵈ − 1 − d of a small d is rounded to 0 or below in fp32.
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

    /// The sums by the names of their metrics.
    fn statistics(self) -> Statistics {
        let others = Statistics::new([
            (Statistic::Mean(CLIP_FRACTION_UPPER), self.clipped_upper),
            (Statistic::Mean(CLIP_FRACTION_LOWER), self.clipped_lower),
            (Statistic::Mean(CLIP_FRACTION_DUAL), self.clipped_dual),
            (Statistic::Mean(REFERENCE_KL), self.reference_kl),
            (Statistic::Mean(BEHAVIOR_WEIGHT), self.behavior_weight),
            (Statistic::Mean(BEHAVIOR_BOUNDED), self.behavior_bounded),
        ]);
        others.plus(self.mismatch_statistics())
    }

    fn mismatch_statistics(self) -> Statistics {
        Statistics::new([
            (Statistic::Mean(KL), self.kl),
            (Statistic::Mean(MISMATCH_MEAN), self.mismatch),
            (Statistic::Max(MISMATCH_MAX), self.mismatch_max),
        ])
    }
}

/// Returns (derivative of the loss with respect to each policy log-probability `[N]`, sums).
pub fn loss(spec: &GrpoSpec, input: &LossInput<'_>) -> (Tensor, LossSums) {
    let mut sums = LossSums::mismatch(input.policy_logprobs_N, input.sampler_logprobs_N);
    let (mut loss_N, mut gradient_N) = surrogate(spec, input, &mut sums);
    if let Some(behavior) = input.behavior {
        sums.behavior_weight = sum(&behavior.weight_N);
        sums.behavior_bounded = sum(&behavior.bounded_N);
        // masked_fill, because the loss of a masked token may be infinite.
        let masked_N = behavior.weight_N.eq(0.0);
        loss_N = (loss_N * &behavior.weight_N).masked_fill(&masked_N, 0.0);
        gradient_N = (gradient_N * &behavior.weight_N).masked_fill(&masked_N, 0.0);
    }
    if let Some(reference_N) = input.reference_logprobs_N {
        let (kl_N, slope_N) = kl::estimate(spec.kl_estimator, input.policy_logprobs_N, reference_N);
        sums.reference_kl = sum(&kl_N);
        if spec.kl_term == KlTerm::Loss {
            loss_N += kl_N * spec.kl_coefficient;
            gradient_N += slope_N * spec.kl_coefficient;
        }
    }
    sums.loss = sum(&(loss_N * input.weights_N));
    (gradient_N * input.weights_N, sums)
}

/// L and its derivative, each `[N]`; counts clipped tokens in `sums`.
fn surrogate(spec: &GrpoSpec, input: &LossInput<'_>, sums: &mut LossSums) -> (Tensor, Tensor) {
    let advantages_N = input.advantages_N;
    let proximal_N = input.proximal_logprobs_N.unwrap_or(input.policy_logprobs_N);
    let ratio_N = (input.policy_logprobs_N - proximal_N).exp();
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
