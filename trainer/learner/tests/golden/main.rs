//! Objectives compared with golden values: advantages, losses and derivatives of AReaL, verl, TRL
//! and torch on the same inputs, to the rounding of fp32. `reference.py` ran their functions once;
//! its header has the versions, and each case of `golden.json` names its function.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints measurements"
)]

mod inputs;
mod pairs;

use inputs::{Golden, close, numbers};
use rljob_crds::algorithm::RolloutSpec;
use rljob_crds::algorithm::grpo::{
    BehaviorWeight, GrpoSpec, KlEstimator, NormalizationMean, NormalizationScale,
};
use rljob_crds::algorithm::ppo::PpoSpec;
use rljob_learner::objective::behavior::weights;
use rljob_learner::objective::distillation::Distillation;
use rljob_learner::objective::grpo::Grpo;
use rljob_learner::objective::kl::estimate;
use rljob_learner::objective::ppo::Ppo;
use rljob_learner::objective::{Objective, TokenStreams};
use serde_json::{Value, json};
use tch::Tensor;

fn grpo(settings: Value) -> Grpo {
    let spec: GrpoSpec = serde_json::from_value(settings).unwrap();
    Grpo::new(&spec, &RolloutSpec::default())
}

/// Streams of the inputs after `prepare`.
fn prepared(golden: &Golden, objective: &mut dyn Objective, streams: &[&str]) -> TokenStreams {
    let advantages = objective.advantages(&golden.rows());
    let mut of_inputs = golden.streams(&advantages, streams);
    objective.prepare(&advantages, &mut [&mut of_inputs], &|_| Ok(())).unwrap();
    of_inputs
}

/// Compares loss and derivative for the advantages of the inputs.
fn assert_loss(case: &str, settings: Value) {
    let golden = Golden::read();
    let objective = &mut grpo(settings);
    let mut streams = prepared(&golden, objective, &["proximal"]);
    streams.advantages_N = golden.tensor("advantages");
    golden.assert_loss(case, &objective.loss(&golden.policy(), &streams));
}

#[test]
fn the_clipped_surrogate_with_dual_clip_is_areals() {
    assert_loss("ppo", json!({"clipHigh": 0.28, "cClip": 1.4}));
}

#[test]
fn icepop_is_areals_rejection_of_tokens_by_their_ratio() {
    assert_loss("icepop", json!({"behaviorWeight": {"lower": 0.75, "upper": 1.5}}));
}

#[test]
fn m2po_masks_the_tokens_that_areal_masks() {
    assert_loss("m2po", json!({"secondMomentLimit": 0.04}));
    let golden = Golden::read();
    let streams = prepared(&golden, &mut grpo(json!({"secondMomentLimit": 0.04})), &["proximal"]);
    let kept: Vec<bool> = numbers(&streams.weights_N).iter().map(|weight| *weight > 0.0).collect();
    assert_eq!(json!(kept), golden.cases["m2po"]["kept"]);
}

#[test]
fn gspo_is_areals_and_its_token_variant_verls() {
    assert_loss("gspo", json!({"ratioLevel": "Sequence"}));
    let token = json!({
        "ratioLevel": "SequenceToken", "clipLow": 0.02, "clipHigh": 0.03,
        "lossAggregation": "Sequence",
    });
    assert_loss("gspoToken", token);
}

#[test]
fn cispo_is_verls() {
    assert_loss("cispo", json!({"surrogate": "CISPO", "clipLow": 0.1, "clipHigh": 0.15}));
}

#[test]
fn sapo_is_areals() {
    let sapo = json!({"tauPositive": 1.0, "tauNegative": 1.05});
    assert_loss("sapo", json!({"surrogate": "SAPO", "sapo": sapo}));
}

#[test]
fn advantages_and_loss_of_gpg_are_verls() {
    let golden = Golden::read();
    let mut objective = grpo(json!({"surrogate": "GPG", "rewardNormalization": {"scale": "None"}}));
    let streams = prepared(&golden, &mut objective, &[]);
    golden.assert_values("gpg", "advantages", &streams.advantages_N);
    golden.assert_loss("gpg", &objective.loss(&golden.policy(), &streams));
}

#[test]
fn advantages_of_reinforce_plus_plus_are_verls() {
    let golden = Golden::read();
    // verl adds 10⁻⁸ to the variance.
    let batch = json!({"mean": "Batch", "scaleLevel": "Batch", "epsilon": 1e-8});
    let mut without_baseline = grpo(json!({
        "rewardNormalization": {"mean": "None", "scale": "None"},
        "advantageNormalization": batch, "klCoefficient": 0.1, "klEstimator": "K1",
    }));
    let streams = prepared(&golden, &mut without_baseline, &["reference"]);
    golden.assert_values("reinforcePlusPlus", "advantages", &streams.advantages_N);
    let mut with_baseline = grpo(json!({
        "rewardNormalization": {"scale": "None"}, "advantageNormalization": batch,
    }));
    let streams = prepared(&golden, &mut with_baseline, &[]);
    golden.assert_values("reinforcePlusPlusBaseline", "advantages", &streams.advantages_N);
}

/// Streams of `ppo` with a discount, a divergence in the reward, and these settings.
fn estimated(golden: &Golden, settings: Value) -> TokenStreams {
    let mut spec: PpoSpec = serde_json::from_value(settings).unwrap();
    (spec.discount, spec.kl_coefficient) = (0.97, 0.1);
    spec.advantage_normalization.mean = NormalizationMean::None;
    spec.advantage_normalization.scale = NormalizationScale::None;
    let mut ppo = Ppo::new(&spec, &RolloutSpec::default());
    prepared(golden, &mut ppo, &["reference", "values"])
}

#[test]
fn advantages_and_returns_of_ppo_are_areals() {
    let golden = Golden::read();
    for (case, settings) in [
        ("gae", json!({"gaeLambda": 0.9})),
        ("gae/1", json!({})),
        ("gae/length", json!({"adaptiveLambda": {"length": {"alpha": 0.3}}})),
        ("gae/position", json!({"adaptiveLambda": {"relativePosition": {"retention": 0.4}}})),
        ("gae/turns", json!({"gaeTimestep": "Turn", "gaeLambda": 0.9})),
        (
            "gae/turns/length",
            json!({"gaeTimestep": "Turn", "adaptiveLambda": {"length": {"alpha": 0.8}}}),
        ),
    ] {
        let streams = estimated(&golden, settings);
        golden.assert_values(case, "advantages", &streams.advantages_N);
        golden.assert_values(case, "returns", &streams.returns_N.unwrap());
    }
}

#[test]
fn a_critic_with_another_lambda_learns_the_returns_that_areal_has_with_it() {
    let golden = Golden::read();
    let length = json!({"adaptiveLambda": {"length": {"alpha": 0.3}}, "criticLambda": 1.0});
    let streams = estimated(&golden, length);
    golden.assert_values("gae/length", "advantages", &streams.advantages_N);
    golden.assert_values("gae/1", "returns", &streams.returns_N.unwrap());
}

#[test]
fn estimates_of_the_divergence_are_areals_within_and_beyond_the_bound() {
    let golden = Golden::read();
    let with = |name: &str, far: [f32; 2]| {
        Tensor::cat(&[golden.tensor(name), Tensor::from_slice(&far)], 0)
    };
    let (policy, reference) = (with("policy", [-0.5, -14.0]), with("reference", [-13.0, -1.0]));
    for (name, estimator) in
        [("k1", KlEstimator::K1), ("k2", KlEstimator::K2), ("k3", KlEstimator::K3)]
    {
        let (found, _) = estimate(estimator, &policy, &reference);
        golden.assert_values(&format!("kl/{name}"), "estimates", &found);
    }
}

#[test]
fn kpop_masks_tokens_by_the_larger_divergence_of_bernoulli_distributions() {
    let golden = Golden::read();
    let divergences = golden.case("kpop", "divergences");
    let mut sorted = divergences.clone();
    sorted.sort_by(f64::total_cmp);
    for bounds in sorted.windows(2).filter(|pair| pair[1] - pair[0] > 1e-5) {
        let upper = f64::midpoint(bounds[0], bounds[1]);
        let spec = json!({"metric": "BinaryKL", "upper": upper});
        let spec: BehaviorWeight = serde_json::from_value(spec).unwrap();
        let found = weights(
            &spec,
            &golden.tensor("proximal"),
            &golden.tensor("sampler"),
            &golden.sequences(),
        );
        let masked: Vec<f64> =
            divergences.iter().map(|value| f64::from(u8::from(*value > upper))).collect();
        close("kpop", &numbers(&found.bounded_N), &masked);
    }
}

#[test]
fn distillation_has_the_advantages_and_the_loss_of_verl() {
    let golden = Golden::read();
    let spec = serde_json::from_value(json!({"teacher": {"path": "/t"}})).unwrap();
    let mut distillation = Distillation::new(&spec, &RolloutSpec::default());
    let streams = prepared(&golden, &mut distillation, &["proximal", "reference"]);
    golden.assert_values("distillation", "advantages", &streams.advantages_N);
    golden.assert_loss("distillation", &distillation.loss(&golden.policy(), &streams));
}

#[test]
fn distillation_beside_rewards_has_the_loss_of_areal_and_the_gradient_of_verl() {
    let golden = Golden::read();
    let joint = json!({"teacher": {"path": "/t"}, "coefficient": 0.3});
    let objective = &mut grpo(json!({ "distillation": joint }));
    let mut streams = prepared(&golden, objective, &["proximal", "reference"]);
    // The divergence is not a part of the rewards.
    let without = prepared(&golden, &mut grpo(json!({})), &["proximal"]);
    assert_eq!(streams.advantages_N, without.advantages_N);
    streams.advantages_N = golden.tensor("advantages");
    golden.assert_loss("joint", &objective.loss(&golden.policy(), &streams));
}
