//! Advantages and weights of a step's samples, from their rewards. Every rank computes all of them.
//!
//! ```text
//!  reward ─ overlong penalty ─ (· + bias) · scale, clipped ─ normalization ─▶ advantage
//!                                                     0 for a truncated sample under `Zero`
//!  trainable tokens of the minibatch ─ aggregation ─▶ weight
//!                                                     no loss for a truncated sample under `Mask`
//! ```

use std::collections::{BTreeMap, BTreeSet};

use rljob_crds::algorithm::grpo::{GrpoSpec, LossAggregation, Surrogate};
use rljob_crds::algorithm::{RolloutSpec, Truncated};
use rljob_protocol::batch::{CHOSEN_REWARD, SampleRow};

use super::normalization::{Grouped, normalize};

/// Values that all tokens of a sample share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleAdvantage {
    /// Prompt group of the sample, numbered from 0 in ascending order of the batch's numbers.
    pub group: usize,
    /// Advantage of its tokens, before terms that depend on log-probabilities.
    pub advantage: f64,
    /// Factor of the sample's reward in `advantage`.
    pub reward_scale: f64,
    /// Weight of each of its tokens in the minibatch's loss.
    pub weight: f64,
    /// Tokens that carry loss; 0 for a masked sample.
    pub trainable_tokens: u32,
    /// Whether a limit ended the sample, so that the state after it has a value.
    pub truncated: bool,
}

/// Advantages and weights of all samples of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepAdvantages {
    /// By sample, in the order of the batch's table.
    pub samples: Vec<SampleAdvantage>,
    /// Number of prompt groups.
    pub groups: usize,
}

impl StepAdvantages {
    /// Advantages from rewards, shaped and normalized.
    pub fn from_rewards(spec: &GrpoSpec, rollout: &RolloutSpec, samples: &[SampleRow]) -> Self {
        let (group_of, groups) = groups(samples);
        let shaped: Vec<Grouped> = samples
            .iter()
            .map(|sample| {
                let tokens = sample.trainable_tokens;
                spec.shaped_reward(sample.reward, tokens, rollout.max_trained_tokens())
            })
            .zip(group_of.iter().copied())
            .collect();
        let (mut normalized, scales) = normalize(&spec.reward_normalization, &shaped, groups);
        if spec.surrogate == Surrogate::GPG {
            scale_up(&mut normalized, &group_of);
        }
        let trainable = |sample: &SampleRow| {
            if sample.truncated && rollout.truncated == Truncated::Mask {
                0
            } else {
                sample.trainable_tokens
            }
        };
        let trainable: Vec<u32> = samples.iter().map(trainable).collect();
        let weights = weights(spec.loss_aggregation, samples, &trainable, rollout.max_new_tokens);
        let of_reward = |index: usize| {
            if samples[index].truncated && rollout.truncated == Truncated::Zero {
                return (0.0, 0.0);
            }
            (normalized[index], spec.reward_shaping.scale * scales[index])
        };
        let sample = |index: usize| SampleAdvantage {
            group: group_of[index],
            advantage: of_reward(index).0,
            reward_scale: of_reward(index).1,
            weight: weights[index],
            trainable_tokens: trainable[index],
            truncated: samples[index].truncated || samples[index].ended_by_limit,
        };
        Self { samples: (0..samples.len()).map(sample).collect(), groups }
    }

    /// Equal weights of all trainable tokens, and no advantages.
    pub fn without_rewards(samples: &[SampleRow]) -> Self {
        let (group_of, groups) = groups(samples);
        let trainable: Vec<u32> = samples.iter().map(|sample| sample.trainable_tokens).collect();
        let weights = weights(LossAggregation::Token, samples, &trainable, 1);
        let sample = |index: usize| SampleAdvantage {
            group: group_of[index],
            advantage: 0.0,
            reward_scale: 0.0,
            weight: weights[index],
            trainable_tokens: trainable[index],
            truncated: samples[index].truncated || samples[index].ended_by_limit,
        };
        Self { samples: (0..samples.len()).map(sample).collect(), groups }
    }

    /// Pairs: the advantage of a chosen sample is 1, that of a rejected one −1. The weight of each
    /// token is 1 ÷ pairs of the minibatch.
    pub fn of_pairs(samples: &[SampleRow]) -> Self {
        let mut pairs: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for sample in samples {
            pairs.entry(sample.minibatch).or_default().insert(sample.group);
        }
        let mut step = Self::without_rewards(samples);
        for (of_pair, sample) in step.samples.iter_mut().zip(samples) {
            let is_chosen = sample.reward >= CHOSEN_REWARD;
            of_pair.advantage = if is_chosen { 1.0 } else { -1.0 };
            of_pair.weight = 1.0 / pairs.get(&sample.minibatch).map_or(1, BTreeSet::len) as f64;
        }
        step
    }

    /// Tokens of the step that carry loss, over all ranks.
    pub fn trainable_tokens(&self) -> u64 {
        self.samples.iter().map(|sample| u64::from(sample.trainable_tokens)).sum()
    }
}

/// Group of each sample, numbered from 0, and the number of groups.
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

/// Multiplies the advantages by the number of samples ÷ those of groups with an advantage, so that
/// groups without one do not weaken the gradient (GPG, arXiv 2504.02546).
fn scale_up(advantages: &mut [f64], group_of: &[usize]) {
    let with_advantage =
        advantages.iter().zip(group_of).filter(|(advantage, _)| **advantage != 0.0);
    let useful: BTreeSet<usize> = with_advantage.map(|(_, group)| *group).collect();
    let samples = group_of.iter().filter(|group| useful.contains(group)).count();
    let factor = group_of.len() as f64 / samples.max(1) as f64;
    for advantage in advantages {
        *advantage *= factor;
    }
}

/// Weight of each token of a sample: Σ weight · loss over the tokens of a minibatch is its loss.
fn weights(
    aggregation: LossAggregation,
    samples: &[SampleRow],
    trainable: &[u32],
    max_new_tokens: u32,
) -> Vec<f64> {
    // By minibatch: number of tokens, of samples with tokens, of samples.
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
mod tests;
