//! Advantages and returns of `ppo` from rewards and values, by Generalized Advantage Estimation
//! (Schulman et al., arXiv 1506.02438; `rljob_kernels::gae`) over the time steps of samples.
//!
//! ```text
//!  Token   a step is a trained token; KL of a token is subtracted from its reward
//!  Turn    a step is a turn: r = Σ rewards of its tokens, V = value of its first token; all its
//!          tokens get its A and R; then KL of a token is subtracted from its A     AReaL
//!
//!  A       with λ:  gaeLambda, or of a sample of L steps, by adaptiveLambda
//!                   length            max(0, 1 − 1 ÷ (α L))          VAPO, arXiv 2504.05118
//!                   relativePosition  q^(1 ÷ (L − 1)), 1 if L ≤ 1    AReaL, q = retention
//!  R = A' + V       A' = A, or with criticLambda in place of λ (decoupled GAE, arXiv 2503.01491)
//! ```
//! Nothing leaves the device. Shape suffix M: the turns of a micro-batch.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::ppo::{AdaptiveLambda, GaeTimestep, PpoSpec};
use rljob_kernels::KernelError;
use rljob_kernels::gae::{Discounts, Packed, advantages};
use tch::{Kind, Tensor};

use super::deferred::Deferred;

/// Inputs of a micro-batch.
#[derive(Debug)]
pub struct Inputs<'a> {
    pub packed: Packed<'a>,
    /// `[N]` fp32, without the KL divergence.
    pub rewards_N: &'a Tensor,
    /// `[N]` rewards for the KL divergence of each token.
    pub kl_rewards_N: Option<Tensor>,
    /// `[M]` int64, first token of each turn.
    pub turn_starts_M: Option<&'a Tensor>,
}

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

/// Estimates by the settings.
pub fn estimate(spec: &PpoSpec, inputs: &Inputs<'_>) -> Result<Estimates, KernelError> {
    let Inputs { packed, rewards_N, kl_rewards_N, turn_starts_M } = inputs;
    let turns_M = turn_starts_M.filter(|_| spec.gae_timestep == GaeTimestep::Turn);
    let with_kl = |values_N: &Tensor| match kl_rewards_N {
        Some(kl_N) => (values_N + kl_N).to_kind(Kind::Float),
        None => values_N.shallow_clone(),
    };
    let sum = |lambda_Q: &Tensor| Deferred::sum(&(lambda_Q * lengths(packed.ends_Q)));
    let Some(starts_M) = turns_M else {
        let steps = Steps::new(spec, packed, &with_kl(rewards_N))?;
        let (advantages_N, returns_N) = (steps.advantages, steps.returns);
        return Ok(Estimates { advantages_N, returns_N, lambda: sum(&steps.lambda_Q) });
    };
    let tokens_N = Tensor::arange(rewards_N.numel() as i64, (Kind::Int64, rewards_N.device()));
    let turn_N = tokens_N.searchsorted(starts_M, false, true, "right", None::<Tensor>) - 1;
    let rewards_M = Tensor::zeros_like(&starts_M.to_kind(Kind::Float));
    let of_turns = Packed {
        ends_Q: &packed.ends_Q.searchsorted(starts_M, false, false, "left", None::<Tensor>),
        values_N: &packed.values_N.index_select(0, starts_M),
        ..*packed
    };
    let steps = Steps::new(spec, &of_turns, &rewards_M.index_add(0, &turn_N, rewards_N))?;
    let at_tokens = |values_M: &Tensor| values_M.index_select(0, &turn_N);
    Ok(Estimates {
        advantages_N: with_kl(&at_tokens(&steps.advantages)),
        returns_N: at_tokens(&steps.returns),
        lambda: sum(&steps.lambda_Q),
    })
}

/// Estimates of time steps.
struct Steps {
    advantages: Tensor,
    returns: Tensor,
    /// λ of each sequence.
    lambda_Q: Tensor,
}

impl Steps {
    /// Of rewards of steps; those of `packed` are steps, not tokens.
    fn new(spec: &PpoSpec, packed: &Packed<'_>, rewards: &Tensor) -> Result<Self, KernelError> {
        let with = |lambda_Q: &Tensor| {
            advantages(packed, rewards, Discounts { discount: spec.discount, lambda_Q })
        };
        let lambda_Q = lambdas(spec, &lengths(packed.ends_Q));
        let advantages = with(&lambda_Q)?;
        let returns = match spec.critic_lambda {
            Some(lambda) => with(&lambda_Q.full_like(lambda))?,
            None => advantages.shallow_clone(),
        };
        Ok(Self { advantages, returns: returns + packed.values_N, lambda_Q })
    }
}

/// Length of each sequence, fp64.
fn lengths(ends_Q: &Tensor) -> Tensor {
    let start = Tensor::zeros([1], (Kind::Int64, ends_Q.device()));
    ends_Q.diff(1, 0, Some(&start), None).to_kind(Kind::Double)
}

/// λ of sequences with these numbers of steps.
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
    use rljob_crds::algorithm::ppo::{GaeTimestep, PpoSpec};
    use rljob_kernels::gae::Packed;
    use serde_json::{Value, json};
    use tch::{Kind, Tensor};

    use super::{Estimates, Inputs, estimate, lambdas};

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
        let position = [1.0, 1.0, 0.25, 0.857_244_0, 0.929_635_4, 0.933_033_0, 0.993_057_9];
        close(&adaptive(json!({"relativePosition": {"retention": 0.25}})), &position);
    }

    /// Estimates of two samples of two and three tokens, whose last tokens have a reward of 1.
    fn estimates(settings: &Value) -> Estimates {
        let packed = Packed {
            ends_Q: &Tensor::from_slice(&[2_i64, 5]),
            values_N: &Tensor::from_slice(&[0.5_f32, 0.25, 0.5, 0.75, 0.25]),
            end_values_Q: &Tensor::from_slice(&[0.0_f32, 0.0]),
        };
        let rewards_N = &Tensor::from_slice(&[0.0_f32, 1.0, 0.0, 0.0, 1.0]);
        let inputs = Inputs { packed, rewards_N, kl_rewards_N: None, turn_starts_M: None };
        estimate(&spec(settings), &inputs).unwrap()
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
        close(&shared.returns_N, &[0.625, 1.0, 0.6875, 0.625, 1.0]);
    }

    /// Estimates of a sample without tokens, of two turns with two and one tokens, which a limit
    /// ended, and of one turn.
    fn of_turns(settings: &Value, kl_rewards: Option<[f64; 5]>) -> Estimates {
        let packed = Packed {
            ends_Q: &Tensor::from_slice(&[0_i64, 3, 5]),
            values_N: &Tensor::from_slice(&[0.5_f32, 9.0, 0.25, 0.75, 7.0]),
            end_values_Q: &Tensor::from_slice(&[8.0_f32, 0.5, 0.0]),
        };
        let inputs = Inputs {
            packed,
            rewards_N: &Tensor::from_slice(&[0.0_f32, 0.125, 1.0, 0.0, 2.0]),
            kl_rewards_N: kl_rewards.map(|rewards| Tensor::from_slice(&rewards)),
            turn_starts_M: Some(&Tensor::from_slice(&[0_i64, 2, 3])),
        };
        let mut spec = spec(settings);
        spec.gae_timestep = GaeTimestep::Turn;
        estimate(&spec, &inputs).unwrap()
    }

    #[test]
    fn the_tokens_of_a_turn_have_its_advantage_and_its_return() {
        let settings = json!({"discount": 0.5, "gaeLambda": 0.5});
        let found = of_turns(&settings, None);
        // δ = 0.125 + 0.5 · 0.25 − 0.5 and 1 + 0.5 · 0.5 − 0.25; γλ = 0.25.
        let (first, second, other) = (-0.25 + 0.25 * 1.0, 1.0, 1.25);
        close(&found.advantages_N, &[first, first, second, other, other]);
        close(&found.returns_N, &[0.5, 0.5, 1.25, 2.0, 2.0]);
        let with_kl = of_turns(&settings, Some([0.5, 0.25, 0.0, -0.5, 0.0]));
        close(&with_kl.advantages_N, &[first + 0.5, first + 0.25, second, other - 0.5, other]);
        assert_eq!(with_kl.returns_N, found.returns_N);
    }

    #[test]
    fn the_length_of_a_sample_is_its_number_of_turns() {
        let position = json!({"relativePosition": {"retention": 0.25}});
        let found = of_turns(&json!({"adaptiveLambda": position}), None);
        // λ = 0.25 of the two turns of three tokens, 1 of the one turn of two tokens.
        let first = 0.125 + 0.25 - 0.5 + 0.25 * (1.0 + 0.5 - 0.25);
        close(&found.advantages_N, &[first, first, 1.25, 1.25, 1.25]);
        assert!((found.lambda.value() - 2.75).abs() < 1e-12, "{:?}", found.lambda);
    }

    #[test]
    fn a_micro_batch_without_tokens_has_no_estimates() {
        let none = |kind| Tensor::zeros([0], (kind, tch::Device::Cpu));
        let packed = Packed {
            ends_Q: &Tensor::from_slice(&[0_i64]),
            values_N: &none(Kind::Float),
            end_values_Q: &Tensor::from_slice(&[0.5_f32]),
        };
        for timestep in [GaeTimestep::Token, GaeTimestep::Turn] {
            let mut spec = spec(&json!({"criticLambda": 0.5}));
            spec.gae_timestep = timestep;
            let found = estimate(
                &spec,
                &Inputs {
                    packed,
                    rewards_N: &none(Kind::Float),
                    kl_rewards_N: Some(none(Kind::Double)),
                    turn_starts_M: Some(&none(Kind::Int64)),
                },
            );
            let found = found.unwrap();
            let sizes = [found.advantages_N.numel(), found.returns_N.numel()];
            assert_eq!((sizes, found.lambda.value()), ([0, 0], 0.0), "{timestep:?}");
        }
    }
}
