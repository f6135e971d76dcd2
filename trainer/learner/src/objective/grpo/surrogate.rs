//! Surrogate losses L of tokens with advantages A, and their derivatives with respect to the
//! logarithm of the importance ratio ρ, or to the log-probability logp where ρ is a constant.
//!
//! ```text
//!  ρ = exp(logp − proximal)                    of each token, or
//!  ρ = exp(mean of logp − proximal)            over the completion: GSPO, arXiv 2507.18071
//!
//!  Clip   L = max(−A ρ, −A clip(ρ, 1 − low, 1 + high))   asymmetric bounds: DAPO, arXiv 2503.14476
//!         L = min(L, c |A|)                              dual clip, for A < 0: arXiv 1912.09729
//!         dL/dlogρ = −A ρ where −A ρ is the value of L, else 0
//!  CISPO  L = −clip(ρ, 1 − low, 1 + high) A logp         arXiv 2506.13585
//!         dL/dlogp = −clip(ρ) A
//!  SAPO   L = −A (4 ÷ τ) σ(τ (ρ − 1))                    arXiv 2511.20347
//!         dL/dlogρ = −4 A ρ σ(1 − σ)
//!  GPG    L = −A logp                                    arXiv 2504.02546
//!         dL/dlogp = −A
//! ```
//! Means over a completion are over the tokens that the behavior weight does not mask, as in AReaL.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::grpo::{BehaviorAggregation, GrpoSpec, RatioLevel, Surrogate};
use tch::{Kind, Tensor};

use super::tokens::{LossInput, LossSums};
use crate::objective::behavior::aggregated;
use crate::objective::deferred::Deferred;

/// Loss and derivative of each token.
pub(super) struct Tokens {
    /// `[N]` L.
    pub loss_N: Tensor,
    /// `[N]` derivative of L with respect to log ρ or logp.
    pub slope_N: Tensor,
    /// Whether ρ is that of the completion, so that the derivative with respect to the
    /// log-probability of a token is the mean of the slopes of its completion.
    pub shares_slopes: bool,
}

/// The surrogate of all tokens; counts clipped tokens in `sums`.
pub(super) fn surrogate(spec: &GrpoSpec, input: &LossInput<'_>, sums: &mut LossSums) -> Tokens {
    let policy_N = input.policy_logprobs_N;
    let by_sequence = spec.ratio_level == RatioLevel::Sequence;
    let advantages_N = if by_sequence {
        &mean_of_sequences(input.advantages_N, input)
    } else {
        input.advantages_N
    };
    if spec.surrogate == Surrogate::GPG {
        let loss_N = -(advantages_N * policy_N);
        return Tokens { loss_N, slope_N: -advantages_N, shares_slopes: false };
    }
    let ratio_N = ratios(spec.ratio_level, input);
    let (loss_N, slope_N) = match spec.surrogate {
        Surrogate::CISPO => {
            let clipped_N = clip(spec, &ratio_N);
            sums.clipped_upper = Deferred::sum(&ratio_N.gt_tensor(&clipped_N));
            sums.clipped_lower = Deferred::sum(&ratio_N.lt_tensor(&clipped_N));
            let slope_N = -(clipped_N * advantages_N);
            (&slope_N * policy_N, slope_N)
        }
        Surrogate::SAPO => soft_gate(spec, &ratio_N, advantages_N),
        Surrogate::Clip | Surrogate::GPG => clipped(spec, &ratio_N, advantages_N, sums),
    };
    let shares_slopes = by_sequence && spec.surrogate != Surrogate::CISPO;
    Tokens { loss_N, slope_N, shares_slopes }
}

/// ρ of each token. Without proximal log-probabilities it is 1.
fn ratios(level: RatioLevel, input: &LossInput<'_>) -> Tensor {
    let policy_N = input.policy_logprobs_N;
    let Some(proximal_N) = input.proximal_logprobs_N else { return policy_N.ones_like() };
    let difference_N = policy_N - proximal_N;
    match level {
        RatioLevel::Token => difference_N,
        RatioLevel::Sequence | RatioLevel::SequenceToken => mean_of_sequences(&difference_N, input),
    }
    .exp()
}

/// The mean over the unmasked tokens of each token's completion, at the token.
fn mean_of_sequences(values_N: &Tensor, input: &LossInput<'_>) -> Tensor {
    let of = |values_N: &Tensor| aggregated(BehaviorAggregation::Mean, values_N, input.sequence_N);
    let Some(behavior) = input.behavior else { return of(values_N) };
    let kept_N = behavior.weight_N.ne(0.0);
    let masked_N = values_N.masked_fill(&kept_N.logical_not(), 0.0);
    // The quotient of two means over all tokens; 0 for a completion without unmasked tokens.
    of(&masked_N) / of(&kept_N.to_kind(Kind::Float)).clamp_min(f64::MIN_POSITIVE)
}

/// Derivative of the weighted loss with respect to each log-probability, if the ratio is that of
/// the completion.
pub(super) fn shared_gradients(slope_N: &Tensor, input: &LossInput<'_>) -> Tensor {
    let gradient_N = mean_of_sequences(&(slope_N * input.weights_N), input);
    match input.behavior {
        Some(behavior) => gradient_N.masked_fill(&behavior.weight_N.eq(0.0), 0.0),
        None => gradient_N,
    }
}

fn clip(spec: &GrpoSpec, ratio_N: &Tensor) -> Tensor {
    ratio_N.clamp(1.0 - spec.clip_low, 1.0 + spec.clip_high)
}

fn clipped(
    spec: &GrpoSpec,
    ratio_N: &Tensor,
    advantages_N: &Tensor,
    sums: &mut LossSums,
) -> (Tensor, Tensor) {
    let free_N = -(advantages_N * ratio_N);
    let clipped_N = -(advantages_N * clip(spec, ratio_N));
    let is_clipped_N = free_N.lt_tensor(&clipped_N);
    let is_positive_N = advantages_N.gt(0.0);
    sums.clipped_upper = Deferred::sum(&is_clipped_N.logical_and(&is_positive_N));
    sums.clipped_lower = Deferred::sum(&is_clipped_N.logical_and(&is_positive_N.logical_not()));
    let loss_N = free_N.maximum(&clipped_N);
    let Some(c_clip) = spec.c_clip else {
        return (loss_N, free_N.masked_fill(&is_clipped_N, 0.0));
    };
    let bound_N = advantages_N.abs() * c_clip;
    let is_bounded_N = bound_N.lt_tensor(&loss_N);
    sums.clipped_dual = Deferred::sum(&is_bounded_N);
    (loss_N.minimum(&bound_N), free_N.masked_fill(&is_clipped_N.logical_or(&is_bounded_N), 0.0))
}

fn soft_gate(spec: &GrpoSpec, ratio_N: &Tensor, advantages_N: &Tensor) -> (Tensor, Tensor) {
    let taus = spec.sapo.clone().unwrap_or_default();
    let tau_N = advantages_N.gt(0.0).to_kind(Kind::Float) * (taus.tau_positive - taus.tau_negative)
        + taus.tau_negative;
    let gate_N = (&tau_N * (ratio_N - 1.0)).sigmoid();
    let slope_N = advantages_N * ratio_N * &gate_N * (1.0 - &gate_N) * -4.0;
    (advantages_N * gate_N / tau_N * -4.0, slope_N)
}
