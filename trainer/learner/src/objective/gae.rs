//! Advantages and returns of `ppo` from rewards and values, by Generalized Advantage Estimation
//! (Schulman et al., arXiv 1506.02438; `rljob_kernels::gae`).
//!
//! ```text
//!  A       with λ:  gaeLambda, or of a sample of L trained tokens, by adaptiveLambda
//!                   length            max(0, 1 − 1 ÷ (α L))          VAPO, arXiv 2504.05118
//!                   relativePosition  q^(1 ÷ (L − 1)), 1 if L ≤ 1    AReaL, q = retention
//!  R = A' + V       A' = A, or with criticLambda in place of λ (decoupled GAE, arXiv 2503.01491)
//! ```
//! Nothing leaves the device.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::ppo::{AdaptiveLambda, PpoSpec};
use rljob_kernels::KernelError;
use rljob_kernels::gae::{Discounts, Packed, advantages};
use tch::{Kind, Tensor};

use super::deferred::Deferred;

/// Estimates for the tokens of a micro-batch.
#[derive(Debug)]
pub struct Estimates {
    /// `[N]` fp32.
    pub advantages_N: Tensor,
    /// `[N]` fp32, in the unit of rewards.
    pub returns_N: Tensor,
    /// Sum over the tokens of the λ of their samples.
    pub lambda: Deferred,
}

/// Estimates from the rewards of tokens `[N]`, fp32.
pub fn estimate(
    spec: &PpoSpec,
    packed: &Packed<'_>,
    rewards_N: &Tensor,
) -> Result<Estimates, KernelError> {
    let with = |lambda_Q: &Tensor| {
        advantages(packed, rewards_N, Discounts { discount: spec.discount, lambda_Q })
    };
    let steps_Q = steps(packed.ends_Q);
    let lambda_Q = lambdas(spec, &steps_Q);
    let advantages_N = with(&lambda_Q)?;
    let of_critic_N = match spec.critic_lambda {
        Some(lambda) => &with(&lambda_Q.full_like(lambda))?,
        None => &advantages_N,
    };
    let returns_N = of_critic_N + packed.values_N;
    Ok(Estimates { advantages_N, returns_N, lambda: Deferred::sum(&(lambda_Q * steps_Q)) })
}

/// Tokens of each sequence, fp64.
fn steps(ends_Q: &Tensor) -> Tensor {
    let start = Tensor::zeros([1], (Kind::Int64, ends_Q.device()));
    ends_Q.diff(1, 0, Some(&start), None).to_kind(Kind::Double)
}

/// λ of sequences with these numbers of tokens.
fn lambdas(spec: &PpoSpec, steps_Q: &Tensor) -> Tensor {
    match &spec.adaptive_lambda {
        Some(AdaptiveLambda { length: Some(own), .. }) => {
            let errors_Q = steps_Q * own.alpha;
            (errors_Q.reciprocal().neg() + 1.0).clamp_min(0.0)
        }
        Some(AdaptiveLambda { relative_position: Some(own), .. }) => {
            let exponents_Q = (steps_Q - 1.0).clamp_min(1.0).reciprocal();
            (exponents_Q * own.retention.ln()).exp().masked_fill(&steps_Q.le(1.0), 1.0)
        }
        Some(_) | None => steps_Q.full_like(spec.gae_lambda),
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::ppo::PpoSpec;
    use rljob_kernels::gae::Packed;
    use serde_json::{Value, json};
    use tch::{Kind, Tensor};

    use super::{Estimates, estimate, lambdas};

    fn spec(settings: &Value) -> PpoSpec {
        serde_json::from_value(settings.clone()).unwrap()
    }

    fn close(found: &Tensor, expected: &[f64]) {
        let found = Vec::<f64>::try_from(found.to_kind(Kind::Double)).unwrap();
        let near = found.len() == expected.len()
            && found.iter().zip(expected).all(|(one, other)| (one - other).abs() <= 1e-6);
        assert!(near, "{found:?} is not {expected:?}");
    }

    #[test]
    fn lambda_depends_on_the_length_of_the_sample_as_in_vapo_and_areal() {
        let of = |settings: Value| {
            lambdas(
                &spec(&settings),
                &Tensor::from_slice(&[0.0, 1.0, 2.0, 10.0, 20.0, 21.0, 200.0]),
            )
        };
        close(&of(json!({"gaeLambda": 0.95})), &[0.95; 7]);
        let adaptive = |member: Value| of(json!({ "adaptiveLambda": member }));
        // The default α of 0.05: 1 − 1 ÷ (L ÷ 20).
        let vapo = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0 - 20.0 / 21.0, 0.9];
        close(&adaptive(json!({"length": {}})), &vapo);
        let long = [0.0, 0.0, 0.5, 0.9, 0.95, 1.0 - 1.0 / 21.0, 0.995];
        close(&adaptive(json!({"length": {"alpha": 1.0}})), &long);
        let position = [1.0, 1.0, 0.25, 0.857_244_0, 0.929_637_0, 0.933_033_0, 0.993_057_9];
        close(&adaptive(json!({"relativePosition": {"retention": 0.25}})), &position);
    }

    /// Estimates of two samples of two and three tokens, whose last tokens have a reward of 1.
    fn estimates(settings: &Value) -> Estimates {
        let packed = Packed {
            ends_Q: &Tensor::from_slice(&[2_i64, 5]),
            values_N: &Tensor::from_slice(&[0.5_f32, 0.25, 0.5, 0.75, 0.25]),
            end_values_Q: &Tensor::from_slice(&[0.0_f32, 0.0]),
        };
        let rewards_N = Tensor::from_slice(&[0.0_f32, 1.0, 0.0, 0.0, 1.0]);
        estimate(&spec(settings), &packed, &rewards_N).unwrap()
    }

    #[test]
    fn the_samples_of_a_micro_batch_have_the_advantages_of_their_lambdas() {
        let adaptive = json!({"relativePosition": {"retention": 0.25}});
        let found = estimates(&json!({"discount": 0.5, "adaptiveLambda": adaptive}));
        // δ = −0.375, 0.75 and −0.125, −0.625, 0.75; γλ = 0.125 and 0.25.
        let second = -0.625 + 0.25 * 0.75;
        let advantages = [-0.375 + 0.125 * 0.75, 0.75, -0.125 + 0.25 * second, second, 0.75];
        close(&found.advantages_N, &advantages);
        let values = [0.5, 0.25, 0.5, 0.75, 0.25];
        let returns: Vec<f64> = advantages.iter().zip(values).map(|(one, of)| one + of).collect();
        close(&found.returns_N, &returns);
        // Two tokens with 0.25 and three with 0.5.
        assert!((found.lambda.value() - 2.0).abs() < 1e-12, "{:?}", found.lambda);
    }

    #[test]
    fn the_critic_learns_returns_with_its_own_lambda() {
        let with = |settings: Value| estimates(&settings);
        let shared = with(json!({"gaeLambda": 0.5}));
        let decoupled = with(json!({"gaeLambda": 0.5, "criticLambda": 1.0}));
        assert_eq!(decoupled.advantages_N, shared.advantages_N);
        assert_eq!(decoupled.returns_N, with(json!({})).returns_N);
        // Without bias, each token's return is the sample's reward.
        close(&decoupled.returns_N, &[1.0; 5]);
        close(&shared.returns_N, &[0.625, 1.0, 0.6875, 0.875, 1.0]);
    }
}
