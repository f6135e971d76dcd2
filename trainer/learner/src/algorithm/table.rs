//! From the step's table to what every sample's tokens get: an advantage and a weight in their
//! minibatch's loss. Every rank computes all of it alike.
//!
//! ```text
//!  reward ─ overlong penalty ─ (· + bias) · scale, clipped ─ normalisation ─▶ advantage       0 for a truncated one under `Zero`
//!  trainable tokens of the minibatch ─ aggregation ─▶ weight                                 no loss for a truncated one under `Mask`
//! ```

use std::collections::BTreeMap;

use rljob_crds::algorithm::{RolloutSpec, Truncated};
use rljob_crds::grpo::{GrpoSpec, LossAggregation};
use rljob_protocol::batch::SampleRow;

use super::normalization::{Grouped, normalize};

/// What the tokens of a sample get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// Its group, numbered from 0 in order of the table's numbers.
    pub group: usize,
    /// The advantage of its tokens, before what depends on log-probabilities.
    pub advantage: f64,
    /// Weight of each of its tokens in the minibatch's loss.
    pub weight: f64,
    /// Tokens that carry loss: none if it is masked.
    pub trainable_tokens: u32,
}

/// The whole step.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// By sample.
    pub entries: Vec<Entry>,
    /// Groups in all.
    pub groups: usize,
}

impl Table {
    /// For `grpo`.
    pub fn grpo(spec: &GrpoSpec, rollout: &RolloutSpec, samples: &[SampleRow]) -> Self {
        let (group_of, groups) = groups(samples);
        let shaped: Vec<Grouped> = samples
            .iter()
            .map(|sample| shaped(spec, rollout, sample))
            .zip(group_of.iter().copied())
            .collect();
        let normalized = normalize(&spec.reward_normalization, &shaped, groups);
        let trainable = |sample: &SampleRow| {
            if sample.truncated && rollout.truncated == Truncated::Mask {
                0
            } else {
                sample.trainable_tokens
            }
        };
        let trainable: Vec<u32> = samples.iter().map(trainable).collect();
        let weights = weights(spec.loss_aggregation, samples, &trainable, rollout.max_new_tokens);
        let entry = |index: usize| Entry {
            group: group_of[index],
            advantage: if samples[index].truncated && rollout.truncated == Truncated::Zero {
                0.0
            } else {
                normalized[index]
            },
            weight: weights[index],
            trainable_tokens: trainable[index],
        };
        Self { entries: (0..samples.len()).map(entry).collect(), groups }
    }

    /// For `sft`: every trainable token counts the same.
    pub fn sft(samples: &[SampleRow]) -> Self {
        let (group_of, groups) = groups(samples);
        let trainable: Vec<u32> = samples.iter().map(|sample| sample.trainable_tokens).collect();
        let weights = weights(LossAggregation::Token, samples, &trainable, 1);
        let entry = |index: usize| Entry {
            group: group_of[index],
            advantage: 0.0,
            weight: weights[index],
            trainable_tokens: trainable[index],
        };
        Self { entries: (0..samples.len()).map(entry).collect(), groups }
    }
}

/// Each sample's group, numbered from 0, and how many there are.
fn groups(samples: &[SampleRow]) -> (Vec<usize>, usize) {
    let mut numbers: BTreeMap<u32, usize> =
        samples.iter().map(|sample| (sample.group, 0)).collect();
    for (number, index) in numbers.values_mut().zip(0..) {
        *number = index;
    }
    (
        samples.iter().filter_map(|sample| numbers.get(&sample.group).copied()).collect(),
        numbers.len(),
    )
}

fn shaped(spec: &GrpoSpec, rollout: &RolloutSpec, sample: &SampleRow) -> f64 {
    let penalty = spec.overlong_penalty.as_ref().map_or(0.0, |overlong| {
        let over = f64::from(sample.trainable_tokens)
            - (f64::from(rollout.max_new_tokens) - f64::from(overlong.tokens));
        (-over / f64::from(overlong.tokens) * overlong.factor).min(0.0)
    });
    let shaping = &spec.reward_shaping;
    ((sample.reward + penalty + shaping.bias) * shaping.scale).clamp(-shaping.clip, shaping.clip)
}

/// Weight of each token of a sample, so that Σ weight · loss over the tokens of a minibatch is its
/// loss.
fn weights(
    aggregation: LossAggregation,
    samples: &[SampleRow],
    trainable: &[u32],
    max_new_tokens: u32,
) -> Vec<f64> {
    // By minibatch: tokens, samples with tokens, samples.
    let mut sizes: BTreeMap<u32, [f64; 3]> = BTreeMap::new();
    for (sample, &tokens) in samples.iter().zip(trainable) {
        let size = sizes.entry(sample.minibatch).or_default();
        *size = [
            size[0] + f64::from(tokens),
            size[1] + f64::from(u32::from(tokens > 0)),
            size[2] + 1.0,
        ];
    }
    let weight = |(sample, &tokens): (&SampleRow, &u32)| {
        let [all_tokens, with_tokens, all] =
            sizes.get(&sample.minibatch).copied().unwrap_or_default();
        1.0 / match aggregation {
            LossAggregation::Token => all_tokens.max(1.0),
            LossAggregation::Sequence => with_tokens.max(1.0) * f64::from(tokens.max(1)),
            LossAggregation::Constant => all * f64::from(max_new_tokens),
        }
    };
    samples.iter().zip(trainable).map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::Table;
    use rljob_crds::algorithm::{RolloutSpec, Truncated};
    use rljob_crds::grpo::{
        GrpoSpec, LossAggregation, NormalizationMean, NormalizationScale, NormalizationSpec,
        OverlongPenalty, RewardShaping,
    };
    use rljob_protocol::batch::SampleRow;

    /// Groups 7 (rewards 1, 0) and 3 (rewards 0.5, 0.5 truncated), a minibatch each.
    fn samples() -> Vec<SampleRow> {
        let row = |group, reward, trainable_tokens, minibatch, truncated| SampleRow {
            group,
            reward,
            trainable_tokens,
            rank: 0,
            minibatch,
            truncated,
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

    /// Rewards as they are shaped, not normalised.
    fn raw() -> GrpoSpec {
        let none = NormalizationSpec {
            mean: NormalizationMean::None,
            scale: NormalizationScale::None,
            ..NormalizationSpec::default()
        };
        GrpoSpec { reward_normalization: none, ..GrpoSpec::default() }
    }

    fn advantages(table: &Table) -> Vec<f64> {
        table.entries.iter().map(|entry| entry.advantage).collect()
    }

    fn weights(table: &Table) -> Vec<f64> {
        table.entries.iter().map(|entry| entry.weight).collect()
    }

    #[test]
    fn rewards_are_normalised_within_their_groups() {
        let table = Table::grpo(&GrpoSpec::default(), &rollout(Truncated::Score), &samples());
        assert_eq!(table.entries.iter().map(|entry| entry.group).collect::<Vec<_>>(), [1, 1, 0, 0]);
        let close = advantages(&table)
            .iter()
            .zip([0.707_097, -0.707_097, 0.0, 0.0])
            .all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close, "{table:?}");
    }

    #[test]
    fn rewards_are_moved_scaled_and_clipped() {
        let shaping = RewardShaping { bias: -0.5, scale: 10.0, clip: 4.0 };
        let table = Table::grpo(
            &GrpoSpec { reward_shaping: shaping, ..raw() },
            &rollout(Truncated::Score),
            &samples(),
        );
        assert_eq!(advantages(&table), [4.0, -4.0, 0.0, 0.0]);
    }

    #[test]
    fn the_overlong_penalty_grows_over_the_last_tokens() {
        let overlong = OverlongPenalty { tokens: 8, factor: 2.0 };
        let table = Table::grpo(
            &GrpoSpec { overlong_penalty: Some(overlong), ..raw() },
            &rollout(Truncated::Score),
            &samples(),
        );
        assert_eq!(advantages(&table), [1.0 - 0.25, -0.75, 0.5 - 0.5, 0.5 - 2.0]);
    }

    #[test]
    fn a_truncated_sample_is_scored_masked_or_without_advantage() {
        let of = |truncated| {
            let table = Table::grpo(&raw(), &rollout(truncated), &samples());
            (table.entries[3].advantage, table.entries[3].trainable_tokens, table.entries[2].weight)
        };
        assert_eq!(of(Truncated::Score), (0.5, 10, 1.0 / 14.0));
        assert_eq!(of(Truncated::Mask), (0.5, 0, 1.0 / 4.0));
        assert_eq!(of(Truncated::Zero), (0.0, 10, 1.0 / 14.0));
    }

    #[test]
    fn weights_make_the_mean_over_tokens_over_sequences_or_a_constant_share() {
        let of = |aggregation, truncated| {
            weights(&Table::grpo(
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
        assert_eq!(weights(&Table::sft(&samples())), of(LossAggregation::Token, Truncated::Score));
    }
}
