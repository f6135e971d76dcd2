//! Tests of advantages.

use super::StepAdvantages;
use rljob_crds::algorithm::grpo::{
    GrpoSpec, LossAggregation, NormalizationMean, NormalizationScale, NormalizationSpec,
    OverlongPenalty, RewardShaping, Surrogate,
};
use rljob_crds::algorithm::{RolloutSpec, Truncated};
use rljob_protocol::batch::SampleRow;

/// Prompt groups 7 (rewards 1, 0) and 3 (rewards 0.5, 0.5 truncated), one minibatch each.
fn samples() -> Vec<SampleRow> {
    let row = |group, reward, trainable_tokens, minibatch, truncated| SampleRow {
        group,
        reward,
        trainable_tokens,
        rank: 0,
        minibatch,
        truncated,
        ended_by_limit: truncated,
        turn_rewards: Vec::new(),
    };
    vec![
        row(7, 1.0, 3, 0, false),
        row(7, 0.0, 5, 0, false),
        row(3, 0.5, 4, 1, false),
        row(3, 0.5, 10, 1, true),
    ]
}

fn rollout(truncated: Truncated) -> RolloutSpec {
    RolloutSpec { max_new_tokens: 10, truncated, ..RolloutSpec::default() }
}

/// Shaped rewards without normalization.
fn raw() -> GrpoSpec {
    let none = NormalizationSpec {
        mean: NormalizationMean::None,
        scale: NormalizationScale::None,
        ..NormalizationSpec::default()
    };
    GrpoSpec { reward_normalization: none, ..GrpoSpec::default() }
}

fn advantages(step: &StepAdvantages) -> Vec<f64> {
    step.samples.iter().map(|sample| sample.advantage).collect()
}

fn weights(step: &StepAdvantages) -> Vec<f64> {
    step.samples.iter().map(|sample| sample.weight).collect()
}

#[test]
fn rewards_are_normalized_within_their_prompt_groups() {
    let step =
        StepAdvantages::from_rewards(&GrpoSpec::default(), &rollout(Truncated::Score), &samples());
    assert_eq!(step.samples.iter().map(|sample| sample.group).collect::<Vec<_>>(), [1, 1, 0, 0]);
    let close = advantages(&step)
        .iter()
        .zip([0.707_097, -0.707_097, 0.0, 0.0])
        .all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(close, "{step:?}");
}

#[test]
fn groups_without_an_advantage_do_not_weaken_the_gradient_of_gpg() {
    let of = |surrogate| {
        let spec = GrpoSpec { surrogate, ..GrpoSpec::default() };
        advantages(&StepAdvantages::from_rewards(&spec, &rollout(Truncated::Score), &samples()))
    };
    let doubled: Vec<f64> = of(Surrogate::Clip).iter().map(|advantage| 2.0 * advantage).collect();
    assert_eq!(of(Surrogate::GPG), doubled);
}

#[test]
fn rewards_are_shifted_scaled_and_clipped() {
    let shaping = RewardShaping { bias: -0.5, scale: 10.0, clip: 4.0 };
    let step = StepAdvantages::from_rewards(
        &GrpoSpec { reward_shaping: shaping, ..raw() },
        &rollout(Truncated::Score),
        &samples(),
    );
    assert_eq!(advantages(&step), [4.0, -4.0, 0.0, 0.0]);
}

#[test]
fn the_overlong_penalty_grows_over_the_last_tokens() {
    let overlong = OverlongPenalty { tokens: 8, factor: 2.0 };
    let step = StepAdvantages::from_rewards(
        &GrpoSpec { overlong_penalty: Some(overlong), ..raw() },
        &rollout(Truncated::Score),
        &samples(),
    );
    assert_eq!(advantages(&step), [1.0 - 0.25, -0.75, 0.5 - 0.5, 0.5 - 2.0]);
}

#[test]
fn the_factor_of_a_reward_is_that_of_shaping_and_normalization() {
    let spec = GrpoSpec {
        reward_shaping: RewardShaping { bias: 0.5, scale: 2.0, clip: 20.0 },
        ..GrpoSpec::default()
    };
    let step = StepAdvantages::from_rewards(&spec, &rollout(Truncated::Zero), &samples());
    // Rewards 1 and 0 of the first group, shaped 3 and 1, have the deviation √2.
    let [one, other] = [&step.samples[0], &step.samples[1]];
    assert!((one.advantage - other.advantage - one.reward_scale).abs() < 1e-12, "{step:?}");
    assert!((one.reward_scale - 2.0_f64.sqrt()).abs() < 1e-4, "{step:?}");
    let zero = step.samples.iter().find(|sample| sample.truncated).unwrap();
    assert_eq!((zero.advantage, zero.reward_scale), (0.0, 0.0));
}

#[test]
fn truncated_samples_are_scored_masked_or_get_advantage_0() {
    let of = |truncated| {
        let step = StepAdvantages::from_rewards(&raw(), &rollout(truncated), &samples());
        (step.samples[3].advantage, step.samples[3].trainable_tokens, step.samples[2].weight)
    };
    assert_eq!(of(Truncated::Score), (0.5, 10, 1.0 / 14.0));
    assert_eq!(of(Truncated::Mask), (0.5, 0, 1.0 / 4.0));
    assert_eq!(of(Truncated::Zero), (0.0, 10, 1.0 / 14.0));
}

#[test]
fn weights_average_over_tokens_sequences_or_a_constant() {
    let of = |aggregation, truncated| {
        weights(&StepAdvantages::from_rewards(
            &GrpoSpec { loss_aggregation: aggregation, ..raw() },
            &rollout(truncated),
            &samples(),
        ))
    };
    assert_eq!(
        of(LossAggregation::Token, Truncated::Score),
        [1.0 / 8.0, 1.0 / 8.0, 1.0 / 14.0, 1.0 / 14.0]
    );
    assert_eq!(
        of(LossAggregation::Sequence, Truncated::Score),
        [1.0 / 6.0, 1.0 / 10.0, 1.0 / 8.0, 1.0 / 20.0]
    );
    assert_eq!(
        of(LossAggregation::Sequence, Truncated::Mask),
        [1.0 / 6.0, 1.0 / 10.0, 1.0 / 4.0, 1.0]
    );
    assert_eq!(of(LossAggregation::Constant, Truncated::Score), [1.0 / 20.0; 4]);
    assert_eq!(
        weights(&StepAdvantages::without_rewards(&samples())),
        of(LossAggregation::Token, Truncated::Score)
    );
}
