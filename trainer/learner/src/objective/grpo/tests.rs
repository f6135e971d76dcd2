//! The loss against AReaL's golden values, and its derivative against autograd.

use rljob_crds::algorithm::grpo::{
    BehaviorAction, BehaviorWeight, GrpoSpec, KlEstimator, KlTerm, RatioLevel, SapoSpec, Surrogate,
};
use tch::{Kind, Tensor};

use super::{LossInput, LossSums, loss};
use crate::objective::behavior::{Weights, weights};

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_slice(values)
}

fn close(actual: &[f64], expected: &[f64], tolerance: f64) {
    let near = actual.len() == expected.len()
        && actual.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance);
    assert!(near, "{actual:?} is not {expected:?}");
}

/// AReaL's golden case without its masked third token: policy, proximal, sampler, advantages, and
/// weights of a mean.
struct Golden {
    policy: Tensor,
    proximal: Tensor,
    sampler: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequences: Tensor,
}

impl Golden {
    fn new() -> Self {
        Self {
            policy: tensor(&[-1.0, -2.0, -3.0]),
            proximal: tensor(&[-1.2, -1.5, -2.0]),
            sampler: tensor(&[-1.1, -1.9, -4.0]),
            advantages: tensor(&[1.0, -1.0, -0.5]),
            weights: tensor(&[1.0 / 3.0; 3]),
            sequences: Tensor::from_slice(&[0_i64, 0, 1]),
        }
    }

    fn input(&self) -> LossInput<'_> {
        LossInput {
            policy_logprobs_N: &self.policy,
            proximal_logprobs_N: Some(&self.proximal),
            sampler_logprobs_N: &self.sampler,
            reference_logprobs_N: None,
            advantages_N: &self.advantages,
            weights_N: &self.weights,
            sequence_N: &self.sequences,
            behavior: None,
        }
    }

    fn behavior(&self, spec: &BehaviorWeight) -> Weights {
        weights(spec, &self.proximal, &self.sampler, &self.sequences)
    }
}

#[test]
fn the_plain_surrogate_matches_areals_golden_value() {
    let golden = Golden::new();
    let (gradient, sums) = loss(&GrpoSpec::default(), &golden.input());
    close(
        &[sums.loss.value(), sums.clipped_upper.value(), sums.clipped_lower.value()],
        &[-9.93e-9, 1.0, 2.0],
        1e-7,
    );
    close(&[sums.mismatch.value(), sums.mismatch_max.value()], &[0.1 + 0.1 + 1.0, 1.0], 1e-6);
    close(
        &[sums.kl.value()],
        &[0.1_f64.exp() - 1.1 + (-0.1_f64).exp() - 0.9 + 1_f64.exp() - 2.0],
        1e-6,
    );
    assert_eq!(gradient, gradient.zeros_like());
}

#[test]
fn the_decoupled_loss_with_dual_clip_matches_areals_golden_value() {
    let golden = Golden::new();
    let spec = GrpoSpec {
        clip_high: 0.28,
        c_clip: Some(3.0),
        behavior_weight: Some(BehaviorWeight::default()),
        ..GrpoSpec::default()
    };
    let behavior = golden.behavior(&BehaviorWeight::default());
    let (_, sums) = loss(&spec, &LossInput { behavior: Some(&behavior), ..golden.input() });
    close(&[sums.loss.value()], &[0.029_429_635], 1e-7);
    close(
        &[sums.behavior_weight.value(), sums.behavior_bounded.value(), sums.clipped_dual.value()],
        &[0.904_837_4 + 1.491_824_6, 1.0, 0.0],
        1e-6,
    );
}

#[test]
fn a_token_below_a_higher_upper_bound_is_not_clipped() {
    let golden = Golden::new();
    let (gradient, sums) =
        loss(&GrpoSpec { clip_high: 0.28, ..GrpoSpec::default() }, &golden.input());
    let free = 0.2_f64.exp();
    close(
        &[sums.loss.value(), sums.clipped_upper.value(), sums.clipped_lower.value()],
        &[(0.8 + 0.4 - free) / 3.0, 0.0, 2.0],
        1e-7,
    );
    close(
        &Vec::<f64>::try_from(gradient.to_kind(Kind::Double)).unwrap(),
        &[-free / 3.0, 0.0, 0.0],
        1e-6,
    );
}

#[test]
fn without_proximal_the_derivative_is_minus_the_advantage() {
    let golden = Golden::new();
    let (gradient, sums) = loss(
        &GrpoSpec::default(),
        &LossInput { proximal_logprobs_N: None, weights_N: &tensor(&[0.25; 3]), ..golden.input() },
    );
    assert_eq!(Vec::<f32>::try_from(gradient).unwrap(), [-0.25, 0.25, 0.125]);
    close(
        &[sums.loss.value(), sums.clipped_upper.value(), sums.clipped_lower.value()],
        &[0.125, 0.0, 0.0],
        1e-9,
    );
}

#[test]
fn the_dual_clip_bounds_the_loss_of_a_token_with_negative_advantage_and_large_ratio() {
    let input = LossInput {
        policy_logprobs_N: &tensor(&[0.0, 0.0]),
        proximal_logprobs_N: Some(&tensor(&[-2.0, -2.0])),
        sampler_logprobs_N: &tensor(&[0.0, 0.0]),
        reference_logprobs_N: None,
        advantages_N: &tensor(&[-0.5, 0.5]),
        weights_N: &tensor(&[1.0, 1.0]),
        sequence_N: &Tensor::from_slice(&[0_i64, 0]),
        behavior: None,
    };
    let (gradient, sums) = loss(&GrpoSpec { c_clip: Some(3.0), ..GrpoSpec::default() }, &input);
    close(
        &[sums.loss.value(), sums.clipped_dual.value(), sums.clipped_upper.value()],
        &[1.5 - 0.6, 1.0, 1.0],
        1e-6,
    );
    assert_eq!(gradient, gradient.zeros_like());
}

#[test]
fn the_sums_of_an_empty_micro_batch_are_0() {
    let empty = tensor(&[]);
    let input = LossInput {
        policy_logprobs_N: &empty,
        proximal_logprobs_N: None,
        sampler_logprobs_N: &empty,
        reference_logprobs_N: Some(&empty),
        advantages_N: &empty,
        weights_N: &empty,
        sequence_N: &empty.to_kind(Kind::Int64),
        behavior: None,
    };
    for (surrogate, ratio_level) in variants() {
        let spec = GrpoSpec { surrogate, ratio_level, ..GrpoSpec::default() };
        assert_eq!(loss(&spec, &input).1, LossSums::default());
    }
}

fn variants() -> impl Iterator<Item = (Surrogate, RatioLevel)> {
    let levels = [RatioLevel::Token, RatioLevel::Sequence, RatioLevel::SequenceToken];
    let surrogates = [Surrogate::Clip, Surrogate::CISPO, Surrogate::SAPO, Surrogate::GPG];
    surrogates.into_iter().flat_map(move |surrogate| levels.map(|level| (surrogate, level)))
}

#[test]
fn the_ratio_of_a_completion_matches_areals_golden_value_of_gspo() {
    let golden = Golden::new();
    let spec = GrpoSpec { ratio_level: RatioLevel::Sequence, ..GrpoSpec::default() };
    let (gradient, sums) = loss(&spec, &golden.input());
    close(&[sums.loss.value(), sums.clipped_lower.value()], &[0.133_333_3, 1.0], 1e-7);
    // The first completion's mean advantage is 0, and the second's ratio is clipped.
    assert_eq!(gradient, gradient.zeros_like());
}

/// The mean over the unmasked tokens of each completion, at its tokens.
fn mean(values: &Tensor, input: &LossInput<'_>) -> Tensor {
    let kept = input.behavior.map_or_else(
        || values.ones_like(),
        |behavior| behavior.weight_N.ne(0.0).to_kind(Kind::Float),
    );
    let completions = input.sequence_N.max().int64_value(&[]) + 1;
    let summed = |values: &Tensor| {
        let zeros = Tensor::zeros([completions], (Kind::Float, tch::Device::Cpu));
        zeros.index_add(0, input.sequence_N, values).index_select(0, input.sequence_N)
    };
    summed(&(values * &kept)) / summed(&kept).clamp_min(1.0)
}

/// The surrogate as a formula that autograd differentiates.
fn reference_surrogate(spec: &GrpoSpec, logprobs: &Tensor, input: &LossInput<'_>) -> Tensor {
    let difference = logprobs - input.proximal_logprobs_N.unwrap();
    let mut advantages = input.advantages_N.shallow_clone();
    let ratio = match spec.ratio_level {
        RatioLevel::Token => difference.exp(),
        RatioLevel::Sequence => {
            advantages = mean(&advantages, input);
            mean(&difference, input).exp()
        }
        RatioLevel::SequenceToken => {
            mean(&difference, input).exp().detach() * (logprobs - logprobs.detach()).exp()
        }
    };
    let clip = |ratio: &Tensor| ratio.clamp(1.0 - spec.clip_low, 1.0 + spec.clip_high);
    match spec.surrogate {
        Surrogate::Clip => {
            let loss = (-(&advantages * &ratio)).maximum(&-(&advantages * clip(&ratio)));
            match spec.c_clip {
                Some(c_clip) => loss.minimum(&(advantages.sign() * c_clip * advantages)),
                None => loss,
            }
        }
        Surrogate::CISPO => -(clip(&ratio.detach()) * advantages * logprobs),
        Surrogate::SAPO => {
            let SapoSpec { tau_positive, tau_negative } = spec.sapo.clone().unwrap_or_default();
            let (high, low) =
                (advantages.full_like(tau_positive), advantages.full_like(tau_negative));
            let tau = high.where_self(&advantages.gt(0.0), &low);
            -(advantages * (&tau * (ratio - 1.0)).sigmoid() * 4.0 / tau)
        }
        Surrogate::GPG => -(advantages * logprobs),
    }
}

/// The loss as a formula that autograd differentiates.
fn reference_loss(spec: &GrpoSpec, logprobs: &Tensor, input: &LossInput<'_>) -> Tensor {
    let mut surrogate = reference_surrogate(spec, logprobs, input);
    if let Some(behavior) = input.behavior {
        surrogate *= &behavior.weight_N;
    }
    if spec.kl_term == KlTerm::Loss {
        let x = logprobs - input.reference_logprobs_N.unwrap();
        let estimate = match spec.kl_estimator {
            KlEstimator::K1 => x,
            KlEstimator::K2 => x.square() / 2.0,
            KlEstimator::K3 => x.neg().exp() - 1.0 + x,
        };
        surrogate += estimate.clamp(-10.0, 10.0) * spec.kl_coefficient;
    }
    (surrogate * input.weights_N).sum(Kind::Float)
}

/// Tokens with ratios on both sides of every bound, in completions of 5 tokens.
struct Tokens {
    policy: Tensor,
    proximal: Tensor,
    sampler: Tensor,
    reference: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequences: Tensor,
}

impl Tokens {
    fn new() -> Self {
        let policy: Vec<f32> =
            (-20..=20).flat_map(|offset| [0.06 * offset as f32 - 3.0; 3]).collect();
        let count = policy.len();
        let cycle = |period: &[f32]| {
            tensor(&(0..count).map(|index| period[index % period.len()]).collect::<Vec<_>>())
        };
        Self {
            policy: tensor(&policy),
            proximal: tensor(&vec![-3.0; count]),
            sampler: cycle(&[-2.9, -3.2, -2.95, -5.0]),
            reference: cycle(&[-2.7, -3.4, -3.0, -2.1, -3.1]),
            advantages: cycle(&[-0.7, 0.0, 1.3]),
            weights: cycle(&[0.01, 0.02]),
            sequences: Tensor::arange(count as i64, (Kind::Int64, tch::Device::Cpu))
                .divide_scalar_mode(5, "floor"),
        }
    }

    /// Compares loss and derivative with autograd's.
    fn check(&self, spec: &GrpoSpec) -> LossSums {
        let logprobs = self.policy.copy().set_requires_grad(true);
        let bounds = spec.behavior_weight.as_ref();
        let behavior =
            bounds.map(|bounds| weights(bounds, &self.proximal, &self.sampler, &self.sequences));
        let input = LossInput {
            policy_logprobs_N: &self.policy,
            proximal_logprobs_N: Some(&self.proximal),
            sampler_logprobs_N: &self.sampler,
            reference_logprobs_N: Some(&self.reference),
            advantages_N: &self.advantages,
            weights_N: &self.weights,
            sequence_N: &self.sequences,
            behavior: behavior.as_ref(),
        };
        let total = reference_loss(spec, &logprobs, &input);
        let expected = Tensor::run_backward(&[&total], &[&logprobs], false, false).remove(0);
        let (gradient, sums) = loss(spec, &input);
        assert!(gradient.allclose(&expected, 1e-5, 1e-7, false), "{spec:?}");
        close(&[sums.loss.value()], &[total.double_value(&[])], 1e-5);
        sums
    }
}

#[test]
fn the_derivative_matches_autograd_on_both_sides_of_every_bound_with_every_option() {
    let tokens = Tokens::new();
    let clamp = BehaviorWeight {
        action: BehaviorAction::Clamp,
        upper: Some(1.1),
        lower: Some(0.95),
        ..BehaviorWeight::default()
    };
    for c_clip in [None, Some(1.5)] {
        for bounds in [None, Some(BehaviorWeight::default()), Some(clamp.clone())] {
            for (kl_term, kl_estimator) in [
                (KlTerm::Reward, KlEstimator::K1),
                (KlTerm::Loss, KlEstimator::K1),
                (KlTerm::Loss, KlEstimator::K2),
                (KlTerm::Loss, KlEstimator::K3),
            ] {
                let sums = tokens.check(&GrpoSpec {
                    clip_high: 0.28,
                    c_clip,
                    behavior_weight: bounds.clone(),
                    kl_coefficient: 0.3,
                    kl_estimator,
                    kl_term,
                    ..GrpoSpec::default()
                });
                assert_eq!(sums.clipped_dual.value() > 0.0, c_clip.is_some());
                assert!(sums.clipped_upper.value() > 0.0 && sums.clipped_lower.value() > 0.0);
            }
        }
    }
}

#[test]
fn the_derivative_of_every_surrogate_at_every_level_matches_autograd() {
    let tokens = Tokens::new();
    for (surrogate, ratio_level) in variants() {
        for behavior_weight in [None, Some(BehaviorWeight::default())] {
            for kl_term in [KlTerm::Reward, KlTerm::Loss] {
                let sums = tokens.check(&GrpoSpec {
                    surrogate,
                    ratio_level,
                    behavior_weight: behavior_weight.clone(),
                    kl_term,
                    kl_coefficient: 0.3,
                    ..GrpoSpec::default()
                });
                let clips = matches!(surrogate, Surrogate::Clip | Surrogate::CISPO);
                assert_eq!(
                    sums.clipped_upper.value() + sums.clipped_lower.value() > 0.0,
                    clips,
                    "{surrogate:?}"
                );
            }
        }
    }
}
