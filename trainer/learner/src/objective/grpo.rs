//! Group Relative Policy Optimization (Shao et al., arXiv 2402.03300) and objectives that differ by
//! the surrogate L of [`surrogate`], with derivatives written by hand.
//!
//! ```text
//!  loss = Σ weight · (behavior weight · L + klCoefficient · KL(policy ‖ reference))
//! ```
//! With `distillation`, the last term is its coefficient · KL(policy ‖ teacher) ([`kl`]).
//! Without proximal log-probabilities the current policy's are used: ρ = 1, and the derivative of
//! every L is −A.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::grpo::{
    GrpoSpec, KlTerm, NormalizationSpec, ProximalLogprobs, Surrogate,
};
use rljob_crds::algorithm::{Capabilities, RolloutSpec};
use rljob_protocol::batch::SampleRow;
use rljob_protocol::metrics::{
    BEHAVIOR_BOUNDED, BEHAVIOR_WEIGHT, CLIP_FRACTION, CLIP_FRACTION_DUAL, CLIP_FRACTION_LOWER,
    CLIP_FRACTION_UPPER, KL, MISMATCH_MAX, MISMATCH_MEAN, MOMENT_MASKED, REFERENCE_KL,
};
use tch::{Kind, Tensor};

use super::advantages::StepAdvantages;
use super::behavior;
use super::deferred::Deferred;
use super::interface::{Objective, PrepareError, Signal, SumError, SumOverRanks, TokenLoss};
use super::kl;
use super::normalization::{Grouped, Totals, normalized, squares, totals};
use super::second_moment;
use super::statistics::{Statistic, Statistics};
use super::streams::{TokenStreams, doubles, fp32};
use crate::model::TokenLogprobs;

mod surrogate;
mod tokens;

pub use tokens::{LossInput, LossSums};

/// The objective with its settings; `spec.behavior_weight` is the effective one.
#[derive(Clone, Debug)]
pub struct Grpo {
    pub spec: GrpoSpec,
    pub rollout: RolloutSpec,
}

impl Objective for Grpo {
    fn signals(&self, updates: u32) -> Vec<Signal> {
        self.spec.signals(&self.rollout, updates)
    }

    fn epochs(&self) -> u32 {
        self.spec.epochs
    }

    fn entropy_coefficient(&self) -> f64 {
        self.spec.entropy_coefficient
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        StepAdvantages::from_rewards(&self.spec, &self.rollout, samples)
    }

    fn prepare(
        &mut self,
        advantages: &StepAdvantages,
        streams: &mut [&mut TokenStreams],
        sum: &SumOverRanks<'_>,
    ) -> Result<Statistics, PrepareError> {
        for streams in streams.iter_mut() {
            if let Some(rewards_N) = kl_rewards(&self.spec, streams) {
                let to_go = kl::to_go(&doubles(&rewards_N), &streams.sequences());
                let device = streams.advantages_N.device();
                streams.advantages_N = &streams.advantages_N + fp32(&to_go, device);
            }
        }
        if let Some(spec) = &self.spec.advantage_normalization {
            normalize_over_tokens(spec, advantages.groups, streams, sum)?;
        }
        Ok(self.prepare_ratios(streams, sum)?)
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
            sequence_N: &streams.sequence_N,
            behavior: of_policy.as_ref().or(streams.behavior.as_ref()),
        };
        let (gradient_N, mut sums) = loss(&self.spec, &input);
        let loss = std::mem::take(&mut sums.loss);
        TokenLoss { gradient_N, selected: None, loss, statistics: sums.statistics() }
    }

    fn statistics(&self) -> Vec<Statistic> {
        let spec = &self.spec;
        let clips = self.clips().then_some([CLIP_FRACTION_UPPER, CLIP_FRACTION_LOWER]);
        let dual = spec.c_clip.filter(|_| spec.surrogate == Surrogate::Clip);
        let dual = dual.map(|_| CLIP_FRACTION_DUAL);
        let has_reference = spec.kl_coefficient > 0.0 || spec.distillation.is_some();
        let reference = has_reference.then_some(REFERENCE_KL);
        let behavior = spec.behavior_weight.as_ref().map(|_| [BEHAVIOR_WEIGHT, BEHAVIOR_BOUNDED]);
        let means = clips.into_iter().flatten().chain([KL, MISMATCH_MEAN]).chain(dual);
        let means = means.chain(reference).chain(behavior.into_iter().flatten());
        let means = means.chain(spec.second_moment_limit.map(|_| MOMENT_MASKED));
        means.map(Statistic::Mean).chain([Statistic::Max(MISMATCH_MAX)]).collect()
    }

    fn derived(&self, reduced: &dyn Fn(&str) -> f64) -> Vec<(&'static str, f64)> {
        let fraction = || reduced(CLIP_FRACTION_UPPER) + reduced(CLIP_FRACTION_LOWER);
        self.clips().then(|| (CLIP_FRACTION, fraction())).into_iter().collect()
    }
}

impl Grpo {
    /// The objective with the effective behavior weight.
    pub fn new(spec: &GrpoSpec, rollout: &RolloutSpec) -> Self {
        let behavior_weight = spec.effective_behavior_weight(rollout);
        let spec = GrpoSpec { behavior_weight, ..spec.clone() };
        Self { spec, rollout: rollout.clone() }
    }

    /// Completes proximal log-probabilities, behavior weights and masks. Returns statistics of the
    /// policy before the update.
    pub(super) fn prepare_ratios(
        &self,
        streams: &mut [&mut TokenStreams],
        sum: &SumOverRanks<'_>,
    ) -> Result<Statistics, SumError> {
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
        if let Some(limit) = self.spec.second_moment_limit {
            let masked = limit_second_moment(limit, streams, sum)?;
            statistics = statistics.plus(masked);
        }
        Ok(statistics)
    }

    fn clips(&self) -> bool {
        matches!(self.spec.surrogate, Surrogate::Clip | Surrogate::CISPO)
    }
}

/// Reward `[N]` of each token for its KL divergence from the reference model, fp64, if that is part
/// of the reward. Without decoupling, the divergence is that of the recomputed log-probabilities
/// where there are any, as in AReaL (`PPOActor.compute_advantages`).
pub(super) fn kl_rewards(spec: &GrpoSpec, streams: &TokenStreams) -> Option<Tensor> {
    let reference_N = streams.reference_logprobs_N.as_ref();
    let is_reward = spec.kl_term == KlTerm::Reward && spec.distillation.is_none();
    let reference_N = reference_N.filter(|_| is_reward)?;
    let recomputed_N = streams.proximal_logprobs_N.as_ref();
    let recomputed_N = recomputed_N.filter(|_| spec.behavior_weight.is_none());
    let policy_N = recomputed_N.unwrap_or(&streams.sampler_logprobs_N);
    let (estimates_N, _) = kl::estimate(spec.kl_estimator, policy_N, reference_N);
    Some(estimates_N.to_kind(Kind::Double) * -spec.kl_coefficient)
}

/// Normalizes the advantages over the trainable tokens of all ranks.
pub(super) fn normalize_over_tokens(
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

/// Masks the tokens with the largest second moments. Returns the number of masked tokens.
fn limit_second_moment(
    limit: f64,
    streams: &mut [&mut TokenStreams],
    sum_over_ranks: &SumOverRanks<'_>,
) -> Result<Statistics, SumError> {
    let moments = |streams: &TokenStreams| {
        let proximal_N = streams.proximal_logprobs_N.as_ref();
        let proximal_N = proximal_N.unwrap_or(&streams.sampler_logprobs_N);
        (proximal_N - &streams.sampler_logprobs_N).nan_to_num(0.0, 0.0, 0.0).square()
    };
    let moments: Vec<Tensor> = streams.iter().map(|streams| moments(streams)).collect();
    let all: Vec<f32> = moments.iter().flat_map(doubles).map(|moment| moment as f32).collect();
    let cut = second_moment::cut(&all, limit, sum_over_ranks)?;
    let mut masked = Deferred::default();
    for (streams, moments_N) in streams.iter_mut().zip(&moments) {
        let Some(cut) = cut else { break };
        let masked_N = moments_N.gt(f64::from(cut));
        masked = masked.plus(Deferred::sum(&masked_N));
        streams.weights_N = streams.weights_N.masked_fill(&masked_N, 0.0);
    }
    Ok(Statistics::new([(Statistic::Mean(MOMENT_MASKED), masked)]))
}

/// Returns (derivative of the loss with respect to each policy log-probability `[N]`, sums).
pub fn loss(spec: &GrpoSpec, input: &LossInput<'_>) -> (Tensor, LossSums) {
    let mut sums = LossSums::mismatch(input.policy_logprobs_N, input.sampler_logprobs_N);
    let surrogate::Tokens { mut loss_N, mut slope_N, shares_slopes } =
        surrogate::surrogate(spec, input, &mut sums);
    if let Some(behavior) = input.behavior {
        sums.behavior_weight = Deferred::sum(&behavior.weight_N);
        sums.behavior_bounded = Deferred::sum(&behavior.bounded_N);
        // masked_fill, because the loss of a masked token may be infinite.
        let masked_N = behavior.weight_N.eq(0.0);
        loss_N = (loss_N * &behavior.weight_N).masked_fill(&masked_N, 0.0);
        slope_N = (slope_N * &behavior.weight_N).masked_fill(&masked_N, 0.0);
    }
    let shared_N = shares_slopes.then(|| surrogate::shared_gradients(&slope_N, input));
    let mut gradient_N = if shares_slopes { slope_N.zeros_like() } else { slope_N };
    if let Some(reference_N) = input.reference_logprobs_N {
        let (kl_N, slope_N, coefficient) = divergence(spec, input.policy_logprobs_N, reference_N);
        sums.reference_kl = Deferred::sum(&kl_N);
        if let Some(coefficient) = coefficient {
            loss_N += kl_N * coefficient;
            gradient_N += slope_N * coefficient;
        }
    }
    sums.loss = Deferred::sum(&(loss_N * input.weights_N));
    let gradient_N = gradient_N * input.weights_N;
    (if let Some(shared_N) = shared_N { gradient_N + shared_N } else { gradient_N }, sums)
}

/// Divergence of each token from the reference model or the teacher, its derivative, and its
/// coefficient in the loss, if it is a part of it.
fn divergence(
    spec: &GrpoSpec,
    policy_N: &Tensor,
    reference_N: &Tensor,
) -> (Tensor, Tensor, Option<f64>) {
    if let Some(joint) = &spec.distillation {
        let (kl_N, slope_N) = kl::from_teacher(policy_N, reference_N);
        return (kl_N, slope_N, Some(joint.coefficient));
    }
    let (kl_N, slope_N) = kl::estimate(spec.kl_estimator, policy_N, reference_N);
    (kl_N, slope_N, (spec.kl_term == KlTerm::Loss).then_some(spec.kl_coefficient))
}

#[cfg(test)]
mod tests;
