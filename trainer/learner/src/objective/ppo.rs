//! Proximal Policy Optimization with a critic (Schulman et al., arXiv 1707.06347).
//!
//! ```text
//!  rewards of turns at their last tokens, − klCoefficient · KL of each token
//!    ─▶ advantages A and returns R from the values V_old before the step ([`gae`])
//!  policy   the loss of `grpo` with the surrogate Clip and A, normalized over tokens
//!  critic   Σ weight · max(½ (V − R)², ½ (V_clip − R)²)
//!           V_clip = V_old + clamp(V − V_old, ± valueClip)
//!           derivative: weight · (V − R), or 0 where V_clip ≠ V has the larger loss
//! ```
//! With `valueHead`, the critic is an output of the policy, and its loss is multiplied by the
//! coefficient c₁ = `lossWeight` (equation 9):
//!
//! ```text
//!  loss = loss of the policy + c₁ · loss of the critic
//! ```
//! With `valueNormalization` the critic's outputs are normalized values ([`ValueNormalizer`]): V
//! and V_old in its loss are outputs, R is normalized, and valueClip is in standard deviations. GAE
//! and the metrics of values and returns have the unit of rewards.
//! With `adaptiveKl`, klCoefficient changes after each step ([`kl_controller`]).
//! The first `criticWarmupSteps` steps train the critic only.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::ppo::PpoSpec;
use rljob_crds::algorithm::{Capabilities, RolloutSpec};
use rljob_kernels::KernelError;
use rljob_kernels::gae::Packed;
use rljob_protocol::batch::SampleRow;
use rljob_protocol::checkpoint::ObjectiveState;
use rljob_protocol::metrics::{
    EXPLAINED_VARIANCE, GAE_LAMBDA, KL_COEFFICIENT, REFERENCE_KL, RETURN_MEAN, RETURN_RUNNING_MEAN,
    RETURN_RUNNING_STD, VALUE_CLIP_FRACTION, VALUE_LOSS, VALUE_MEAN,
};
use tch::{Kind, Tensor};

use super::advantages::StepAdvantages;
use super::deferred::Deferred;
use super::gae::{self, Estimates, Inputs};
use super::grpo::{Grpo, kl_rewards, normalize_over_tokens};
use super::interface::{
    Objective, PrepareError, Signal, StateError, SumError, SumOverRanks, TokenLoss,
};
use super::kl_controller;
use super::statistics::{Statistic, Statistics};
use super::streams::TokenStreams;
use super::value_normalizer::{StepMoments, ValueNormalizer};
use crate::model::TokenLogprobs;

/// Variance of returns below which they count as constant: rewards have a unit of about 1.
const CONSTANT: f64 = 1e-12;

/// The objective with its settings.
#[derive(Clone, Debug)]
pub struct Ppo {
    spec: PpoSpec,
    /// Loss of the policy, with the current coefficient of the KL divergence.
    policy: Grpo,
    normalizer: Option<ValueNormalizer>,
}

impl Ppo {
    /// The objective of valid settings.
    pub fn new(spec: &PpoSpec, rollout: &RolloutSpec) -> Self {
        let normalizer = spec.value_normalization.as_ref().map(ValueNormalizer::new);
        Self { spec: spec.clone(), policy: Grpo::new(&spec.grpo(), rollout), normalizer }
    }

    /// Replaces outputs of the critic by values in the unit of rewards; returns the outputs.
    fn denormalize(&self, streams: &mut TokenStreams) -> Option<Tensor> {
        let normalizer = self.normalizer.as_ref()?;
        let ends_Q = streams.end_values_Q.take();
        streams.end_values_Q = ends_Q.map(|outputs_Q| normalizer.values(&outputs_Q));
        let outputs_N = streams.values_N.take()?;
        streams.values_N = Some(normalizer.values(&outputs_N));
        Some(outputs_N)
    }

    /// Adds the step's returns to the moments, then replaces values by the critic's `outputs` and
    /// returns by its targets.
    fn normalize(
        &mut self,
        returns: StepMoments,
        streams: &mut [&mut TokenStreams],
        outputs: Vec<Option<Tensor>>,
    ) {
        let Some(normalizer) = &mut self.normalizer else { return };
        normalizer.add(returns);
        for (streams, outputs_N) in streams.iter_mut().zip(outputs) {
            streams.values_N = outputs_N;
            let returns_N = streams.returns_N.take();
            streams.returns_N = returns_N.map(|returns_N| normalizer.targets(&returns_N));
        }
    }

    /// Replaces the samples' advantages, which are their rewards, by estimates, and sets returns.
    /// Returns the sum over tokens of λ. Nothing leaves the device.
    fn estimate(&self, streams: &mut TokenStreams) -> Result<Deferred, KernelError> {
        let (Some(values_N), Some(end_values_Q)) = (&streams.values_N, &streams.end_values_Q)
        else {
            return Ok(Deferred::default());
        };
        let truncated_Q = Tensor::from_slice(&streams.truncated).to_device(values_N.device());
        let packed = Packed {
            ends_Q: &streams.ends_Q(),
            values_N,
            end_values_Q: &(end_values_Q * truncated_Q),
        };
        let rewards_N = match &streams.turn_rewards_N {
            Some(rewards_N) => rewards_N.shallow_clone(),
            None => streams.advantages_N.masked_fill(&streams.is_last_N().logical_not(), 0.0),
        };
        let inputs = Inputs {
            packed,
            rewards_N: &rewards_N,
            kl_rewards_N: kl_rewards(&self.policy.spec, streams),
            turn_starts_M: streams.turn_starts_M.as_ref(),
        };
        let Estimates { advantages_N, returns_N, lambda } = gae::estimate(&self.spec, &inputs)?;
        streams.returns_N = Some(returns_N);
        streams.advantages_N = advantages_N;
        Ok(lambda)
    }
}

impl Objective for Ppo {
    fn signals(&self, updates: u32) -> Vec<Signal> {
        self.spec.signals(&self.policy.rollout, updates)
    }

    fn epochs(&self) -> u32 {
        self.policy.epochs()
    }

    fn entropy_coefficient(&self) -> f64 {
        self.policy.entropy_coefficient()
    }

    fn critic_warmup_steps(&self) -> u32 {
        self.spec.critic_warmup_steps
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        self.policy.advantages(samples)
    }

    fn prepare(
        &mut self,
        advantages: &StepAdvantages,
        streams: &mut [&mut TokenStreams],
        sum: &SumOverRanks<'_>,
    ) -> Result<Statistics, PrepareError> {
        let (mut outputs, mut lambda) = (Vec::with_capacity(streams.len()), Deferred::default());
        for streams in streams.iter_mut() {
            outputs.push(self.denormalize(streams));
            lambda = lambda.plus(self.estimate(streams)?);
        }
        let (of_values, returns) = statistics(streams, sum)?;
        self.normalize(returns, streams, outputs);
        let normalization = self.spec.advantage_normalization.clone().into();
        normalize_over_tokens(&normalization, advantages.groups, streams, sum)?;
        let lambda = Statistics::new([(Statistic::Mean(GAE_LAMBDA), lambda)]);
        Ok(self.policy.prepare_ratios(streams, sum)?.plus(of_values).plus(lambda))
    }

    fn loss(&self, policy: &TokenLogprobs, streams: &TokenStreams) -> TokenLoss {
        self.policy.loss(policy, streams)
    }

    fn value_loss(&self, values_N: &Tensor, streams: &TokenStreams) -> TokenLoss {
        let (Some(old_N), Some(returns_N)) = (&streams.values_N, &streams.returns_N) else {
            return TokenLoss::none(values_N);
        };
        let weights_N = match &self.spec.value_head {
            Some(head) => &streams.weights_N * head.loss_weight,
            None => streams.weights_N.shallow_clone(),
        };
        value_loss(self.spec.value_clip, [values_N, old_N, returns_N, &weights_N])
    }

    fn statistics(&self) -> Vec<Statistic> {
        let own = [VALUE_LOSS, VALUE_CLIP_FRACTION, VALUE_MEAN, RETURN_MEAN, EXPLAINED_VARIANCE];
        let lambda = self.spec.adaptive_lambda.as_ref().map(|_| GAE_LAMBDA);
        let own = own.into_iter().chain(lambda).map(Statistic::Mean);
        self.policy.statistics().into_iter().chain(own).collect()
    }

    fn derived(&self, reduced: &dyn Fn(&str) -> f64) -> Vec<(&'static str, f64)> {
        let coefficient = self.state().kl_coefficient.map(|current| (KL_COEFFICIENT, current));
        let moments = self.normalizer.as_ref().map(ValueNormalizer::mean_and_std);
        let moments =
            moments.map(|(mean, std)| [(RETURN_RUNNING_MEAN, mean), (RETURN_RUNNING_STD, std)]);
        let own = coefficient.into_iter().chain(moments.into_iter().flatten());
        self.policy.derived(reduced).into_iter().chain(own).collect()
    }

    fn end_step(&mut self, samples: usize, metric: &dyn Fn(&str) -> f64) {
        if let Some(adaptive) = &self.spec.adaptive_kl {
            let coefficient = &mut self.policy.spec.kl_coefficient;
            *coefficient =
                kl_controller::adapted(adaptive, *coefficient, metric(REFERENCE_KL), samples);
        }
    }

    fn state(&self) -> ObjectiveState {
        let is_adaptive = self.spec.adaptive_kl.is_some();
        ObjectiveState {
            kl_coefficient: is_adaptive.then_some(self.policy.spec.kl_coefficient),
            returns: self.normalizer.as_ref().map(|normalizer| normalizer.moments),
        }
    }

    fn restore(&mut self, state: ObjectiveState) -> Result<(), StateError> {
        match (&mut self.normalizer, state.returns) {
            (Some(normalizer), Some(moments)) => normalizer.moments = moments,
            (Some(_), None) => return Err(StateError::NoReturns),
            (None, Some(_)) => return Err(StateError::Returns),
            (None, None) => {}
        }
        let coefficient = state.kl_coefficient.filter(|_| self.spec.adaptive_kl.is_some());
        self.policy.spec.kl_coefficient = coefficient.unwrap_or(self.policy.spec.kl_coefficient);
        Ok(())
    }
}

/// Means of values and returns, and 1 − variance of (return − value) ÷ that of returns over
/// the tokens of all ranks; 0 if the returns are equal. Also the moments of returns over these
/// tokens, which are not finite without tokens.
fn statistics(
    streams: &[&mut TokenStreams],
    sum: &SumOverRanks<'_>,
) -> Result<(Statistics, StepMoments), SumError> {
    let doubles = |streams: &&mut TokenStreams| {
        let tensors_N = [streams.returns_N.as_ref()?, streams.values_N.as_ref()?];
        Some(tensors_N.map(|tensor_N| tensor_N.to_kind(Kind::Double)))
    };
    let pairs: Vec<[Tensor; 2]> = streams.iter().filter_map(doubles).collect();
    let tokens = pairs.iter().map(|[returns_N, _]| returns_N.numel() as f64).sum::<f64>();
    let [own_returns, own_values] =
        sums(pairs.iter().map(|pair| pair.each_ref().map(Tensor::shallow_clone)));
    let mut totals = [tokens, own_returns, own_values];
    sum(&mut totals)?;
    let mean = |total: f64| total / totals[0].max(1.0);
    let (mean_return, mean_error) = (mean(totals[1]), mean(totals[1] - totals[2]));
    let deviations = |[returns_N, values_N]: &[Tensor; 2]| {
        [returns_N - mean_return, returns_N - values_N - mean_error].map(|one| one.square())
    };
    let mut squares = sums(pairs.iter().map(deviations));
    sum(&mut squares)?;
    let varies = squares[0] > CONSTANT * totals[0];
    let explained = if varies { 1.0 - squares[1] / squares[0] } else { 0.0 };
    let statistics = Statistics::new([
        (Statistic::Mean(RETURN_MEAN), own_returns),
        (Statistic::Mean(VALUE_MEAN), own_values),
        // The mean over the tokens of all ranks.
        (Statistic::Mean(EXPLAINED_VARIANCE), explained * tokens),
    ]);
    let square = squares[0] / totals[0] + mean_return * mean_return;
    Ok((statistics, StepMoments { mean: mean_return, square }))
}

/// Sums of both tensors of all micro-batches, read from a GPU with one wait.
fn sums(pairs: impl Iterator<Item = [Tensor; 2]>) -> [f64; 2] {
    let mut sums = <[Deferred; 2]>::default();
    for [one, other] in pairs {
        let [first, second] = sums;
        sums = [first.plus(Deferred::sum(&one)), second.plus(Deferred::sum(&other))];
    }
    Deferred::read(&mut sums);
    sums.map(|sum| sum.value())
}

/// Loss of the critic; the tensors `[N]` are values, values before the step, returns and weights.
/// No bound of the change with `clip` 0.
fn value_loss(clip: f64, [values_N, old_N, returns_N, weights_N]: [&Tensor; 4]) -> TokenLoss {
    let error_N = values_N - returns_N;
    let free_N = error_N.square() / 2.0;
    let change_N = values_N - old_N;
    let clipped_N = (old_N + change_N.clamp(-clip, clip) - returns_N).square() / 2.0;
    let is_beyond_N = change_N.abs().gt(if clip > 0.0 { clip } else { f64::INFINITY });
    let is_clipped_N = is_beyond_N.logical_and(&clipped_N.gt_tensor(&free_N));
    let loss_N = clipped_N.where_self(&is_clipped_N, &free_N);
    TokenLoss {
        gradient_N: error_N.masked_fill(&is_clipped_N, 0.0) * weights_N,
        selected: None,
        loss: Deferred::sum(&(&loss_N * weights_N)),
        statistics: Statistics::new([
            (Statistic::Mean(VALUE_LOSS), Deferred::sum(&loss_N)),
            (Statistic::Mean(VALUE_CLIP_FRACTION), Deferred::sum(&is_clipped_N)),
        ]),
    }
}

#[cfg(test)]
mod tests;
