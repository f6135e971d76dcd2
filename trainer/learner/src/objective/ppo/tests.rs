//! The critic's loss against AReaL's golden value and autograd; advantages and returns of streams.

use rljob_crds::algorithm::RolloutSpec;
use rljob_crds::algorithm::ppo::PpoSpec;
use rljob_protocol::checkpoint::{ObjectiveState, RunningMoments};
use rljob_protocol::metrics::{
    EXPLAINED_VARIANCE, RETURN_MEAN, RETURN_RUNNING_MEAN, RETURN_RUNNING_STD, VALUE_CLIP_FRACTION,
    VALUE_LOSS,
};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::{Ppo, value_loss};
use crate::model::TokenLogprobs;
use crate::objective::{Objective, StateError, Statistic, StepAdvantages, TokenLoss, TokenStreams};

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_slice(values)
}

fn close(actual: &[f64], expected: &[f64], tolerance: f64) {
    let near = actual.len() == expected.len()
        && actual.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance);
    assert!(near, "{actual:?} is not {expected:?}");
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double)).unwrap()
}

fn ppo(settings: &Value) -> Ppo {
    let spec: PpoSpec = serde_json::from_value(settings.clone()).unwrap();
    Ppo::new(&spec, &RolloutSpec::default())
}

/// Three tokens of a finished completion with reward 1, two of a truncated one with reward 0.5.
fn streams() -> TokenStreams {
    TokenStreams {
        sequence_N: Tensor::from_slice(&[0_i64, 0, 0, 1, 1]),
        groups: vec![0, 1],
        truncated: vec![false, true],
        sampler_logprobs_N: tensor(&[-1.0, -2.0, -0.5, -3.0, -1.5]),
        advantages_N: tensor(&[1.0, 1.0, 1.0, 0.5, 0.5]),
        weights_N: tensor(&[0.2; 5]),
        turn_rewards_N: None,
        turn_starts_M: None,
        reference_logprobs_N: Some(tensor(&[-1.5, -2.0, -0.5, -2.0, -1.5])),
        teacher: None,
        proximal_logprobs_N: None,
        values_N: Some(tensor(&[0.5, 0.25, 0.75, 0.0, 1.0])),
        end_values_Q: Some(tensor(&[8.0, 0.25])),
        returns_N: None,
        behavior: None,
    }
}

/// Streams and statistics after `prepare` on one rank.
fn prepared(settings: &Value) -> (TokenStreams, Vec<f64>) {
    let mut streams = streams();
    let advantages = StepAdvantages { samples: Vec::new(), groups: 2 };
    let statistics = ppo(settings).prepare(&advantages, &mut [&mut streams], &|_| Ok(())).unwrap();
    let means = [RETURN_MEAN, EXPLAINED_VARIANCE];
    let means = means.map(|name| statistics.get(Statistic::Mean(name)) / 5.0).to_vec();
    (streams, means)
}

#[test]
fn the_critics_loss_matches_areals_golden_value() {
    // Without the masked third token.
    let (values, old) = (tensor(&[1.0, 2.0, 4.0]), tensor(&[0.5, 2.5, 0.0]));
    let (returns, weights) = (tensor(&[2.0; 3]), tensor(&[1.0 / 3.0; 3]));
    let loss = value_loss(0.5, [&values, &old, &returns, &weights]);
    close(&[loss.loss.value()], &[0.833_333_3], 1e-6);
    let mean = |name| loss.statistics.get(Statistic::Mean(name));
    close(&[mean(VALUE_LOSS), mean(VALUE_CLIP_FRACTION)], &[2.5, 0.0], 1e-6);
    close(&floats(&loss.gradient_N), &[-1.0 / 3.0, 0.0, 2.0 / 3.0], 1e-6);
}

#[test]
fn the_critics_derivative_matches_autograd_within_and_beyond_the_clip() {
    let wave = |count: i64, phase: f64| {
        (Tensor::arange(count, (Kind::Float, tch::Device::Cpu)) * 1.3 + phase).sin() * 1.5
    };
    let (old, returns) = (wave(64, 0.0), wave(64, 2.0));
    let weights = wave(64, 4.0).abs() / 64.0;
    for clip in [0.5, 0.05, 0.0] {
        let values = (&old + wave(64, 1.0) * 0.8).detach().set_requires_grad(true);
        let free = (&values - &returns).square() / 2.0;
        let expected = if clip > 0.0 {
            let clipped = &old + (&values - &old).clamp(-clip, clip);
            free.maximum(&((clipped - &returns).square() / 2.0))
        } else {
            free
        };
        let expected = (expected * &weights).sum(Kind::Float);
        let slope = Tensor::run_backward(&[&expected], &[&values], false, false).remove(0);
        let loss = value_loss(clip, [&values.detach(), &old, &returns, &weights]);
        close(&[loss.loss.value()], &[expected.double_value(&[])], 1e-5);
        assert!(loss.gradient_N.allclose(&slope, 1e-4, 1e-8, false), "clip {clip}");
        let clipped = loss.statistics.get(Statistic::Mean(VALUE_CLIP_FRACTION));
        assert_eq!(clipped > 0.0, clip > 0.0, "clip {clip}");
    }
}

#[test]
fn the_loss_of_a_value_head_has_a_coefficient_and_its_mean_none() {
    let (mut streams, _) = prepared(&json!({}));
    streams.weights_N = tensor(&[0.1, 0.2, 0.3, 0.2, 0.2]);
    let values = streams.values_N.as_ref().unwrap() + 0.25;
    let loss = |settings| ppo(&settings).value_loss(&values, &streams);
    let critic = loss(json!({"valueClip": 0.1}));
    let head = loss(json!({"valueClip": 0.1, "valueHead": {"lossWeight": 0.25}}));
    close(&[head.loss.value()], &[critic.loss.value() * 0.25], 1e-7);
    let scaled: Vec<f64> = floats(&critic.gradient_N).iter().map(|slope| slope * 0.25).collect();
    close(&floats(&head.gradient_N), &scaled, 1e-7);
    let mean = |of: &TokenLoss| of.statistics.get(Statistic::Mean(VALUE_LOSS));
    assert!(mean(&critic) > 0.0);
    close(&[mean(&head)], &[mean(&critic)], 0.0);
}

#[test]
fn a_truncated_completion_is_bootstrapped_and_a_finished_one_is_not() {
    let none = json!({"mean": "None", "scale": "None"});
    let (streams, means) = prepared(&json!({"advantageNormalization": none}));
    close(&floats(&streams.advantages_N), &[0.5, 0.75, 0.25, 0.75, -0.25], 1e-6);
    let returns = floats(streams.returns_N.as_ref().unwrap());
    close(&returns, &[1.0, 1.0, 1.0, 0.75, 0.75], 1e-6);
    // Errors 0.5, 0.75, 0.25, 0.75, −0.25 of mean 0.4; their squared deviations add up to 0.7.
    close(&means, &[0.9, 1.0 - 0.7 / 0.075], 1e-6);
}

#[test]
fn rewards_of_turns_are_those_of_their_tokens() {
    let none = json!({"mean": "None", "scale": "None"});
    let settings = json!({"advantageNormalization": none, "discount": 0.5, "gaeLambda": 0.0});
    let mut with_turns = streams();
    with_turns.reference_logprobs_N = None;
    // The first turn of the first sample is its first two tokens; the other sample has one turn.
    with_turns.turn_rewards_N = Some(tensor(&[0.0, 0.25, 0.75, 0.0, 0.5]));
    let advantages = StepAdvantages { samples: Vec::new(), groups: 2 };
    ppo(&settings).prepare(&advantages, &mut [&mut with_turns], &|_| Ok(())).unwrap();
    let deltas = [
        0.5 * 0.25 - 0.5,
        0.25 + 0.5 * 0.75 - 0.25,
        0.75 - 0.75,
        0.5 * 1.0,
        0.5 + 0.5 * 0.25 - 1.0,
    ];
    close(&floats(&with_turns.advantages_N), &deltas, 1e-6);
}

#[test]
fn the_kl_divergence_of_a_token_is_part_of_its_reward() {
    let none = json!({"mean": "None", "scale": "None"});
    let (streams, _) = prepared(&json!({
        "advantageNormalization": none, "klCoefficient": 0.5, "discount": 0.5, "gaeLambda": 0.0,
    }));
    // K1 is 0.5 for the first token and −1 for the fourth.
    let deltas = [
        -0.25 + 0.5 * 0.25 - 0.5,
        0.5 * 0.75 - 0.25,
        1.0 - 0.75,
        0.5 + 0.5 * 1.0,
        0.5 + 0.5 * 0.25 - 1.0,
    ];
    close(&floats(&streams.advantages_N), &deltas, 1e-6);
}

#[test]
fn advantages_are_normalized_over_the_batch_and_returns_are_not() {
    let (streams, _) = prepared(&json!({}));
    let raw = [0.5, 0.75, 0.25, 0.75, -0.25];
    let deviation = (0.7_f64 / 4.0).sqrt() + 1e-5;
    let expected = raw.map(|advantage| (advantage - 0.4) / deviation);
    close(&floats(&streams.advantages_N), &expected, 1e-6);
    let returns = floats(streams.returns_N.as_ref().unwrap());
    close(&returns, &[1.0, 1.0, 1.0, 0.75, 0.75], 1e-6);
}

#[test]
fn outputs_of_the_critic_are_values_by_the_moments_of_earlier_steps() {
    let none = json!({"mean": "None", "scale": "None"});
    let settings = json!({"advantageNormalization": none, "valueNormalization": {"decay": 0.5}});
    let mut objective = ppo(&settings);
    let prepare = |objective: &mut Ppo| {
        let mut streams = streams();
        let advantages = StepAdvantages { samples: Vec::new(), groups: 2 };
        let statistics = objective.prepare(&advantages, &mut [&mut streams], &|_| Ok(()));
        (streams, statistics.unwrap().get(Statistic::Mean(RETURN_MEAN)) / 5.0)
    };
    let outputs = [0.5, 0.25, 0.75, 0.0, 1.0];
    // Without moments, values are outputs. Returns have mean 0.9 and variance 0.015.
    let (first, mean) = prepare(&mut objective);
    close(&floats(&first.advantages_N), &[0.5, 0.75, 0.25, 0.75, -0.25], 1e-6);
    close(&[mean], &[0.9], 1e-6);
    close(&floats(first.values_N.as_ref().unwrap()), &outputs, 0.0);
    let std = 0.015_f64.sqrt();
    let targets = [1.0, 1.0, 1.0, 0.75, 0.75].map(|of: f64| (of - 0.9) / std);
    close(&floats(first.returns_N.as_ref().unwrap()), &targets, 1e-5);
    let names = |objective: &Ppo| {
        let derived = objective.derived(&|_| 0.0);
        let of = |name| derived.iter().find(|(other, _)| *other == name).unwrap().1;
        [RETURN_RUNNING_MEAN, RETURN_RUNNING_STD].map(of)
    };
    close(&names(&objective), &[0.9, std], 1e-6);
    // Values of the next step are 0.9 + std · output; that after the truncated completion, too.
    let (second, mean) = prepare(&mut objective);
    let value = |output: f64| 0.9 + std * output;
    let end = 0.5 + value(0.25);
    let returns = [1.0, 1.0, 1.0, end, end];
    let advantages: Vec<f64> =
        returns.iter().zip(outputs).map(|(of, output)| of - value(output)).collect();
    close(&floats(&second.advantages_N), &advantages, 1e-6);
    let second_mean = returns.iter().sum::<f64>() / 5.0;
    close(&[mean], &[second_mean], 1e-6);
    // Weights ⅓ and ⅔ of both steps.
    let square = returns.iter().map(|of| of * of).sum::<f64>() / 5.0;
    let mean = (0.9 + 2.0 * second_mean) / 3.0;
    let std = ((0.825 + 2.0 * square) / 3.0 - mean * mean).sqrt();
    close(&names(&objective), &[mean, std], 1e-6);
    // The loss compares outputs with targets.
    let loss = objective.value_loss(second.values_N.as_ref().unwrap(), &second);
    let slopes: Vec<f64> =
        outputs.iter().zip(returns).map(|(of, one)| 0.2 * (of - (one - mean) / std)).collect();
    close(&floats(&loss.gradient_N), &slopes, 1e-5);
}

#[test]
fn a_critic_of_normalized_values_and_one_of_raw_values_do_not_replace_each_other() {
    let normalized = || ppo(&json!({"valueNormalization": {}}));
    let moments = RunningMoments { mean: 0.25, square: 0.75, weight: 0.5 };
    let state = ObjectiveState { returns: Some(moments), ..ObjectiveState::default() };
    let mut continued = normalized();
    assert_eq!(continued.restore(state), Ok(()));
    assert_eq!(continued.state(), state);
    assert_eq!(normalized().restore(ObjectiveState::default()), Err(StateError::NoReturns));
    assert_eq!(ppo(&json!({})).restore(state), Err(StateError::Returns));
}

#[test]
fn the_policys_derivative_matches_autograd() {
    let settings = json!({"clipLow": 0.1, "clipHigh": 0.2, "cClip": 1.5});
    let (mut streams, _) = prepared(&settings);
    streams.reference_logprobs_N = None;
    let proximal = streams.sampler_logprobs_N.shallow_clone();
    streams.proximal_logprobs_N = Some(proximal.shallow_clone());
    let policy =
        (proximal.shallow_clone() + tensor(&[0.05, 0.4, -0.3, 0.02, 0.9])).set_requires_grad(true);
    let (ratio, a) = ((&policy - proximal).exp(), &streams.advantages_N);
    let clipped = (-(a * &ratio)).maximum(&-(a * ratio.clamp(0.9, 1.2)));
    let expected = (clipped.minimum(&(a.abs() * 1.5)) * &streams.weights_N).sum(Kind::Float);
    let slope = Tensor::run_backward(&[&expected], &[&policy], false, false).remove(0);
    let logprobs_N = policy.detach();
    let tokens = TokenLogprobs::new(logprobs_N.shallow_clone(), logprobs_N.zeros_like());
    let loss = ppo(&settings).loss(&tokens, &streams);
    close(&[loss.loss.value()], &[expected.double_value(&[])], 1e-6);
    assert!(loss.gradient_N.allclose(&slope, 1e-4, 1e-8, false), "{:?}", floats(&slope));
}
