//! Estimates of the KL divergence from a reference model (Schulman,
//! joschu.net/blog/kl-approx.html), as a loss and as a reward, and from a teacher, as a loss.
//!
//! ```text
//!  x = log-probability − that of the reference or teacher
//!  reference   k1 = x   k2 = x² ÷ 2   k3 = e⁻ˣ − 1 + x      each within ± 10, with its derivative
//!  teacher     x with the derivative x, both within ± 10    k1 with the derivative of k2
//! ```
//! Over tokens that the policy samples, that of k2 is the gradient of KL(policy ‖ teacher), and
//! that of k1 is 0 (KDRL, arXiv 2506.02208; `k1+` of verl).

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

/// Returns (estimate of KL(policy ‖ teacher) of each token `[N]`, derivative of its expectation
/// with respect to the log-probability `[N]`).
pub fn from_teacher(logprobs_N: &Tensor, teacher_N: &Tensor) -> (Tensor, Tensor) {
    let x_N = (logprobs_N - teacher_N).clamp(-LIMIT, LIMIT);
    (x_N.shallow_clone(), x_N)
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
    use super::{estimate, from_teacher, to_go};
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

    /// Two tokens over four choices: logits of the policy, and probabilities of the teacher.
    const LOGITS: [f32; 8] = [0.5, -1.0, 0.25, 2.0, 0.0, -0.5, 1.5, 0.0];
    const TEACHER: [f32; 8] = [0.2, 0.5, 0.2, 0.1, 0.25, 0.25, 0.25, 0.25];

    #[test]
    fn the_mean_over_tokens_of_the_policy_is_the_divergence_with_its_gradient_by_autograd() {
        let logits = Tensor::from_slice(&LOGITS).view([2, 4]).set_requires_grad(true);
        let logprobs = logits.log_softmax(-1, Kind::Float);
        let teacher = Tensor::from_slice(&TEACHER).view([2, 4]).log();
        let kl = (logprobs.exp() * (&logprobs - &teacher)).sum(Kind::Float);
        let expected = Tensor::run_backward(&[&kl], &[&logits], true, false).remove(0);
        let (values, slopes) = from_teacher(&logprobs.detach(), &teacher);
        let shares = logprobs.exp().detach();
        let mean = (&shares * values).sum(Kind::Float);
        assert!((mean.double_value(&[]) - kl.double_value(&[])).abs() < 1e-6, "{mean} {kl}");
        let through = (shares * slopes * logprobs).sum(Kind::Float);
        let found = Tensor::run_backward(&[through], &[&logits], false, false).remove(0);
        assert!(found.allclose(&expected, 1e-5, 1e-6, false), "{found} {expected}");
    }

    #[test]
    fn a_token_that_the_teacher_excludes_has_a_bounded_derivative_and_not_none() {
        let logprobs = Tensor::from_slice(&[-0.5_f32, -14.0]);
        let (values, slopes) =
            from_teacher(&logprobs, &Tensor::from_slice(&[f32::NEG_INFINITY, -0.5]));
        assert_eq!(Vec::<f32>::try_from(&values).unwrap(), [10.0, -10.0]);
        assert_eq!(Vec::<f32>::try_from(&slopes).unwrap(), [10.0, -10.0]);
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
