//! Estimates of the KL divergence from a reference model (Schulman,
//! joschu.net/blog/kl-approx.html), as a loss and as a reward.
//!
//! With x = log-probability − the reference's: k1 = x, k2 = x² ÷ 2, k3 = e⁻ˣ − 1 + x, each within ±
//! 10.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::grpo::KlEstimator;
use tch::Tensor;

/// Bound on estimates, because a token that the reference excludes would outweigh all others.
const LIMIT: f64 = 10.0;

/// Returns (estimate of each token `[N]`, its derivative with respect to the log-probability `[N]`,
/// which is 0 where the estimate is clamped).
pub fn estimate(
    estimator: KlEstimator,
    logprobs_N: &Tensor,
    reference_N: &Tensor,
) -> (Tensor, Tensor) {
    let x_N = logprobs_N - reference_N;
    let (value_N, slope_N) = match estimator {
        KlEstimator::K1 => (x_N.shallow_clone(), x_N.ones_like()),
        KlEstimator::K2 => (x_N.square() / 2.0, x_N.shallow_clone()),
        KlEstimator::K3 => {
            let inverse_N = x_N.neg().exp();
            (&inverse_N - 1.0 + &x_N, 1.0 - inverse_N)
        }
    };
    let within_N = value_N.abs().le(LIMIT);
    let slope_N = slope_N.where_self(&within_N, &slope_N.zeros_like());
    (value_N.clamp(-LIMIT, LIMIT), slope_N)
}

/// Sum of the rewards of each token and of all later tokens of its sequence.
///
/// `sequences` has the sequence of each token; tokens of a sequence are consecutive and in order.
pub fn to_go(rewards: &[f64], sequences: &[i64]) -> Vec<f64> {
    let mut sums = vec![0.0; rewards.len()];
    let mut rest = 0.0;
    for token in (0..rewards.len()).rev() {
        if sequences.get(token + 1) != sequences.get(token) {
            rest = 0.0;
        }
        rest += rewards[token];
        sums[token] = rest;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::{estimate, to_go};
    use rljob_crds::algorithm::grpo::KlEstimator;
    use tch::{Kind, Tensor};

    #[test]
    fn estimates_and_derivatives_match_autograd_within_and_beyond_the_bound() {
        let values: Vec<f32> = vec![-12.0, -3.0, -0.5, 0.0, 0.25, 2.0, 11.0];
        let reference = Tensor::from_slice(&vec![-0.125_f32; values.len()]);
        for estimator in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
            let logprobs = Tensor::from_slice(&values).set_requires_grad(true);
            let x = &logprobs - &reference;
            let raw = match estimator {
                KlEstimator::K1 => x,
                KlEstimator::K2 => x.pow_tensor_scalar(2) / 2.0,
                KlEstimator::K3 => x.neg().exp() - 1.0 + x,
            };
            let expected = raw.clamp(-10.0, 10.0);
            let slope =
                Tensor::run_backward(&[expected.sum(Kind::Float)], &[&logprobs], false, false)
                    .remove(0);
            let (value, given) = estimate(estimator, &logprobs.detach(), &reference);
            assert!(value.allclose(&expected, 1e-6, 1e-6, false), "{estimator:?}");
            assert!(given.allclose(&slope, 1e-6, 1e-6, false), "{estimator:?}");
        }
    }

    #[test]
    fn an_infinite_estimate_is_clamped_and_has_derivative_0() {
        let (value, slope) = estimate(
            KlEstimator::K3,
            &Tensor::from_slice(&[-200.0_f32]),
            &Tensor::from_slice(&[0.0_f32]),
        );
        assert_eq!((value.double_value(&[0]), slope.double_value(&[0])), (10.0, 0.0));
    }

    #[test]
    fn a_reward_to_go_includes_later_tokens_of_the_sequence() {
        assert_eq!(to_go(&[0.5, 1.0, -0.5, 2.0], &[0, 0, 2, 2]), [1.5, 1.0, 1.5, 2.0]);
        assert_eq!(to_go(&[], &[]), [0.0; 0]);
    }
}
