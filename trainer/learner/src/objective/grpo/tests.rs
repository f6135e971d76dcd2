//! The loss against AReaL's golden values, and its derivative against autograd.

use rljob_crds::grpo::{BehaviorAction, BehaviorWeight, GrpoSpec, KlEstimator, KlTerm};
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
}

impl Golden {
    fn new() -> Self {
        Self {
            policy: tensor(&[-1.0, -2.0, -3.0]),
            proximal: tensor(&[-1.2, -1.5, -2.0]),
            sampler: tensor(&[-1.1, -1.9, -4.0]),
            advantages: tensor(&[1.0, -1.0, -0.5]),
            weights: tensor(&[1.0 / 3.0; 3]),
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
            behavior: None,
        }
    }

    fn behavior(&self, spec: &BehaviorWeight) -> Weights {
        weights(spec, &self.proximal, &self.sampler, &Tensor::from_slice(&[0_i64, 0, 1]))
    }
}

#[test]
fn the_plain_surrogate_matches_areals_golden_value() {
    let golden = Golden::new();
    let (gradient, sums) = loss(&GrpoSpec::default(), &golden.input());
    close(&[sums.loss, sums.clipped_upper, sums.clipped_lower], &[-9.93e-9, 1.0, 2.0], 1e-7);
    close(&[sums.mismatch, sums.mismatch_max], &[0.1 + 0.1 + 1.0, 1.0], 1e-6);
    close(&[sums.kl], &[0.1_f64.exp() - 1.1 + (-0.1_f64).exp() - 0.9 + 1_f64.exp() - 2.0], 1e-6);
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
    close(&[sums.loss], &[0.029_429_635], 1e-7);
    close(
        &[sums.behavior_weight, sums.behavior_bounded, sums.clipped_dual],
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
        &[sums.loss, sums.clipped_upper, sums.clipped_lower],
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
    close(&[sums.loss, sums.clipped_upper, sums.clipped_lower], &[0.125, 0.0, 0.0], 1e-9);
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
        behavior: None,
    };
    let (gradient, sums) = loss(&GrpoSpec { c_clip: Some(3.0), ..GrpoSpec::default() }, &input);
    close(&[sums.loss, sums.clipped_dual, sums.clipped_upper], &[1.5 - 0.6, 1.0, 1.0], 1e-6);
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
        behavior: None,
    };
    assert_eq!(loss(&GrpoSpec::default(), &input).1, LossSums::default());
}

/// The loss as a formula that autograd differentiates.
fn reference_loss(spec: &GrpoSpec, logprobs: &Tensor, input: &LossInput<'_>) -> Tensor {
    let ratio = (logprobs - input.proximal_logprobs_N.unwrap()).exp();
    let advantages = input.advantages_N;
    let mut surrogate = (-(advantages * &ratio))
        .maximum(&-(advantages * ratio.clamp(1.0 - spec.clip_low, 1.0 + spec.clip_high)));
    if let Some(c_clip) = spec.c_clip {
        surrogate = surrogate.minimum(&(advantages.sign() * c_clip * advantages));
    }
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

#[test]
fn the_derivative_matches_autograd_on_both_sides_of_every_bound_with_every_option() {
    let values: Vec<f32> = (-20..=20).flat_map(|offset| [0.06 * offset as f32; 3]).collect();
    let count = values.len();
    let cycle = |period: &[f32]| {
        tensor(&(0..count).map(|index| period[index % period.len()]).collect::<Vec<_>>())
    };
    let (proximal, sampler) = (tensor(&vec![0.0; count]), cycle(&[0.1, -0.2, 0.05, -2.0]));
    let (advantages, weights_, reference) =
        (cycle(&[-0.7, 0.0, 1.3]), cycle(&[0.01, 0.02]), cycle(&[0.3, -0.4, 0.0, 0.9, -0.1]));
    let sequence = Tensor::arange(count as i64, (Kind::Int64, tch::Device::Cpu))
        .divide_scalar_mode(5, "floor");
    let clamp = BehaviorWeight {
        action: BehaviorAction::Clamp,
        upper: 1.1,
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
                let spec = GrpoSpec {
                    clip_high: 0.28,
                    c_clip,
                    behavior_weight: bounds.clone(),
                    kl_coefficient: 0.3,
                    kl_estimator,
                    kl_term,
                    ..GrpoSpec::default()
                };
                let logprobs = tensor(&values).set_requires_grad(true);
                let behavior =
                    bounds.as_ref().map(|bounds| weights(bounds, &proximal, &sampler, &sequence));
                let input = LossInput {
                    policy_logprobs_N: &logprobs.detach(),
                    proximal_logprobs_N: Some(&proximal),
                    sampler_logprobs_N: &sampler,
                    reference_logprobs_N: Some(&reference),
                    advantages_N: &advantages,
                    weights_N: &weights_,
                    behavior: behavior.as_ref(),
                };
                let total = reference_loss(&spec, &logprobs, &input);
                let expected =
                    Tensor::run_backward(&[&total], &[&logprobs], false, false).remove(0);
                let (gradient, sums) = loss(&spec, &input);
                assert!(gradient.allclose(&expected, 1e-6, 1e-7, false), "{spec:?}");
                close(&[sums.loss], &[total.double_value(&[])], 1e-5);
                assert_eq!(sums.clipped_dual > 0.0, c_clip.is_some());
                assert!(sums.clipped_upper > 0.0 && sums.clipped_lower > 0.0);
            }
        }
    }
}
