//! The entropy bonus: its derivative against autograd, in chunks and over whole micro-batches, and
//! its effect on the policy.

use rljob_protocol::metrics;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::fixture::{small_model, spec, train, trainer};
use crate::model::TokenLogprobs;
use crate::objective::{self, TokenStreams};
use crate::ranks::Ranks;
use crate::step::entropy::policy_loss;

/// Three tokens over four choices.
const LOGITS: [f32; 12] = [0.5, -1.0, 0.25, 2.0, 0.0, -0.5, 1.5, -2.0, 0.1, 0.2, 0.3, -3.0];

fn grpo(coefficient: f64) -> Value {
    json!({"grpo": {"entropyCoefficient": coefficient}})
}

#[test]
fn the_derivative_of_the_loss_with_its_entropy_matches_autograd() {
    for algorithm in [grpo(0.5), json!({"ppo": {"entropyCoefficient": 0.5}})] {
        let spec = spec(&algorithm, "Random", 1);
        let objective = objective::new(spec.algorithm.resolve().unwrap(), &spec.rollout);
        let logits = Tensor::from_slice(&LOGITS).reshape([3, 4]).set_requires_grad(true);
        let all = logits.log_softmax(-1, Kind::Float);
        let targets = Tensor::from_slice(&[3_i64, 0, 2]).unsqueeze(1);
        let logprobs_N = all.gather(-1, &targets, false).squeeze_dim(-1);
        let entropy_N = -(all.exp() * &all).sum_dim_intlist([-1].as_slice(), false, Kind::Float);
        let advantages_N = Tensor::from_slice(&[1.0_f32, -0.5, 2.0]);
        let weights_N = Tensor::from_slice(&[0.25_f32, 0.5, 0.125]);
        let streams = TokenStreams {
            sequence_N: Tensor::from_slice(&[0_i64, 0, 0]),
            groups: vec![0],
            truncated: vec![false],
            sampler_logprobs_N: logprobs_N.detach(),
            advantages_N: advantages_N.shallow_clone(),
            turn_rewards_N: None,
            turn_starts_M: None,
            weights_N: weights_N.shallow_clone(),
            reference_logprobs_N: None,
            teacher: None,
            proximal_logprobs_N: None,
            values_N: None,
            end_values_Q: None,
            returns_N: None,
            behavior: None,
        };
        let policy = TokenLogprobs::new(logprobs_N.detach(), entropy_N.detach());
        let (gradient, sums) = policy_loss(objective.as_ref(), &policy, &streams);

        let ratio = (&logprobs_N - logprobs_N.detach()).exp();
        let expected = ((-(advantages_N * ratio) - &entropy_N * 0.5) * weights_N).sum(Kind::Float);
        let tokens = [&logprobs_N, &entropy_N];
        let slopes = Tensor::run_backward(&[&expected], &tokens, false, false);
        assert!((sums.loss.value() - expected.double_value(&[])).abs() < 1e-6, "{sums:?}");
        assert!(gradient.logprobs_C.allclose(&slopes[0], 1e-6, 1e-8, false), "{gradient:?}");
        let of_entropy = gradient.entropy_C.unwrap();
        assert!(of_entropy.allclose(&slopes[1], 1e-6, 1e-8, false), "{of_entropy:?}");
    }
}

#[test]
fn a_coefficient_keeps_the_entropy_higher_for_chunks_and_whole_micro_batches() {
    let folder = small_model();
    let level = json!({"ratioLevel": "Sequence", "proximalLogprobs": "Sampler"});
    for whole in [false, true] {
        let run = |coefficient: f64| {
            let mut algorithm = grpo(coefficient);
            if whole {
                let settings = algorithm["grpo"].as_object_mut().unwrap();
                settings.extend(level.as_object().unwrap().clone());
            }
            let spec = spec(&algorithm, "Random", 1);
            let mut trainer = trainer(spec, folder.path(), Ranks::alone());
            train(&mut trainer, 1..=20, 1)
        };
        let [without, with] = [run(0.0), run(1.0)];
        let entropy = |steps: &[metrics::StepMetrics], step: usize| {
            steps[step].get(metrics::ENTROPY).unwrap()
        };
        assert_eq!(entropy(&with, 0).to_bits(), entropy(&without, 0).to_bits());
        let loss = |steps: &[metrics::StepMetrics]| steps[0].get(metrics::LOSS).unwrap();
        let bonus = loss(&without) - loss(&with);
        assert!((bonus - entropy(&with, 0)).abs() < 1e-4, "{bonus}");
        assert!(entropy(&with, 19) > entropy(&without, 19), "{with:?}");
    }
}

#[test]
fn several_epochs_of_grpo_update_the_policy_several_times() {
    let folder = small_model();
    let run = |epochs: u32| {
        let spec = spec(&json!({"grpo": {"epochs": epochs}}), "Random", 1);
        let mut trainer = trainer(spec, folder.path(), Ranks::alone());
        let steps = train(&mut trainer, 1..=1, 1);
        (steps, trainer.models.policy.optimizer.progress().updates)
    };
    let [(one, updates), (three, several)] = [run(1), run(3)];
    assert_eq!((updates, several), (1, 3));
    // The first pass is that of the policy before the step, the others have ratios.
    assert_eq!(one[0].get(metrics::CLIP_FRACTION), Some(0.0));
    assert!(three[0].get(metrics::CLIP_FRACTION) > Some(0.0), "{three:?}");
}
