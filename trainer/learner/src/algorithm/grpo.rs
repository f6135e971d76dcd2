//! Group Relative Policy Optimization (Shao et al., arXiv 2402.03300) with asymmetric clip and token-level loss (DAPO, Yu et al., arXiv 2503.14476).
//!
//! ```text
//!  ρ = exp(logp − proximal),  L = max(−A ρ, −A clip(ρ, 1 − low, 1 + high)),  loss = Σ L ÷ trainable tokens of the minibatch over all ranks
//!  dL/dlogp = −A ρ where −A ρ is the larger (or both are equal), else 0
//! ```
//! Without proximal log-probabilities they are the learner's own: ρ = 1 and the derivative is −A.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

/// Added to the standard deviation, as in AReaL's `Normalization`.
const EPSILON: f64 = 1e-5;

/// Rewards normalised within groups: `(r − mean) ÷ (std + 1e-5)` with the unbiased standard deviation, which is 1 for a group of one.
///
/// `samples`: (group, reward), groups in any order. The result is in the order of `samples`; a group of equal rewards gets zeros.
pub fn advantages(samples: &[(u32, f64)]) -> Vec<f64> {
    let mut groups: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for &(group, reward) in samples {
        groups.entry(group).or_default().push(reward);
    }
    let moments: BTreeMap<u32, (f64, f64)> = groups.into_iter().map(|(group, rewards)| (group, mean_and_std(&rewards))).collect();
    let normalised = |&(group, reward): &(u32, f64)| moments.get(&group).map_or(0.0, |(mean, std)| (reward - mean) / (std + EPSILON));
    samples.iter().map(normalised).collect()
}

fn mean_and_std(rewards: &[f64]) -> (f64, f64) {
    let count = rewards.len() as f64;
    let mean = rewards.iter().sum::<f64>() / count;
    let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
    (mean, if rewards.len() <= 1 { 1.0 } else { (squares / (count - 1.0)).sqrt() })
}

/// Bounds of the importance ratio: `[1 − low, 1 + high]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// Below 1.
    pub low: f64,
    /// Above 1.
    pub high: f64,
}

/// What the loss is computed from, each `[N]` fp32.
#[derive(Clone, Copy, Debug)]
pub struct LossInput<'a> {
    /// The learner's log-probabilities now.
    pub learner_logprobs_N: &'a Tensor,
    /// The learner's before the step's first update; none with one minibatch, where they are equal.
    pub proximal_logprobs_N: Option<&'a Tensor>,
    /// The sampler's, for metrics.
    pub sampler_logprobs_N: &'a Tensor,
    /// The advantage of each token's sample.
    pub advantages_N: &'a Tensor,
    /// Trainable tokens of the minibatch over all ranks, at least 1.
    pub trainable_tokens: u64,
}

/// Sums over the tokens given; those of several micro-batches and ranks add up, but `mismatch_max` takes the larger.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct LossSums {
    /// The loss, already divided by the minibatch's trainable tokens.
    pub loss: f64,
    /// Tokens whose ratio was clipped.
    pub clipped: f64,
    /// Estimate k3 (Schulman, joschu.net/blog/kl-approx.html) of KL(sampler ‖ learner): eᵈ − 1 − d with d = learner − sampler.
    pub kl: f64,
    /// |learner − sampler|, nats.
    pub mismatch: f64,
    /// Largest |learner − sampler|, nats.
    pub mismatch_max: f64,
}

impl LossSums {
    /// The sums of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            loss: self.loss + other.loss,
            clipped: self.clipped + other.clipped,
            kl: self.kl + other.kl,
            mismatch: self.mismatch + other.mismatch,
            mismatch_max: self.mismatch_max.max(other.mismatch_max),
        }
    }
}

/// The clipped surrogate: (derivative of the loss by each learner log-probability `[N]`, sums).
pub fn loss(input: &LossInput<'_>, clip: Clip) -> (Tensor, LossSums) {
    let proximal_N = input.proximal_logprobs_N.unwrap_or(input.learner_logprobs_N);
    let ratio_N = (input.learner_logprobs_N - proximal_N).exp();
    let free_N = -(input.advantages_N * &ratio_N);
    let clipped_N = -(input.advantages_N * ratio_N.clamp(1.0 - clip.low, 1.0 + clip.high));
    let loss_N = free_N.maximum(&clipped_N);
    let gradient_N = free_N.where_self(&free_N.ge_tensor(&clipped_N), &free_N.zeros_like()) / input.trainable_tokens as f64;
    let difference_N = input.learner_logprobs_N - input.sampler_logprobs_N;
    // In fp64, where it is never negative: fp32 loses eᵈ − 1 − d of a small d whole.
    let k3_N = difference_N.to_kind(Kind::Double).expm1() - difference_N.to_kind(Kind::Double);
    let mismatch_N = difference_N.abs();
    let sums = LossSums {
        loss: sum(&loss_N) / input.trainable_tokens as f64,
        clipped: sum(&free_N.lt_tensor(&clipped_N)),
        kl: sum(&k3_N),
        mismatch: sum(&mismatch_N),
        mismatch_max: if mismatch_N.numel() == 0 { 0.0 } else { mismatch_N.max().double_value(&[]) },
    };
    (gradient_N, sums)
}

fn sum(tensor: &Tensor) -> f64 {
    tensor.sum(Kind::Double).double_value(&[])
}

#[cfg(test)]
mod tests {
    use super::{Clip, LossInput, LossSums, advantages, loss};
    use tch::{Kind, Tensor};

    const CLIP: Clip = Clip { low: 0.2, high: 0.28 };

    fn close(actual: &[f64], expected: &[f64], tolerance: f64) {
        let near = actual.len() == expected.len() && actual.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance);
        assert!(near, "{actual:?} is not {expected:?}");
    }

    #[test]
    fn advantages_are_areals_golden_values() {
        let rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0];
        let samples: Vec<_> = rewards.iter().enumerate().map(|(index, &reward)| (index as u32 / 4, reward)).collect();
        let expected: Vec<f64> = rewards.iter().map(|&reward| if reward > 0.5 { 0.86601 } else { -0.86601 }).collect();
        close(&advantages(&samples), &expected, 1e-5);
    }

    #[test]
    fn a_group_of_one_and_a_group_of_equals_get_zero() {
        assert_eq!(advantages(&[(3, 1.0), (1, 0.25), (1, 0.25)]), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn groups_may_be_interleaved_and_of_any_size() {
        let mixed = advantages(&[(0, 1.0), (1, 2.0), (0, 0.0), (1, 4.0), (1, 6.0)]);
        close(&mixed, &[0.707_097, -0.999_995, -0.707_097, 0.0, 0.999_995], 1e-6);
    }

    /// The first golden case of AReaL's `ppo_actor_loss_fn`, its masked third token left out.
    fn golden() -> [Tensor; 4] {
        let tensor = |values: &[f32]| Tensor::from_slice(values);
        [tensor(&[-1.0, -2.0, -3.0]), tensor(&[-1.2, -1.5, -2.0]), tensor(&[-1.1, -1.9, -4.0]), tensor(&[1.0, -1.0, -0.5])]
    }

    #[test]
    fn the_plain_surrogate_is_areals_golden_value() {
        let [learner, proximal, sampler, advantages] = golden();
        let input = LossInput {
            learner_logprobs_N: &learner,
            proximal_logprobs_N: Some(&proximal),
            sampler_logprobs_N: &sampler,
            advantages_N: &advantages,
            trainable_tokens: 3,
        };
        let (gradient, sums) = loss(&input, Clip { low: 0.2, high: 0.2 });
        close(&[sums.loss, sums.clipped], &[-9.93e-9, 3.0], 1e-7);
        close(&[sums.mismatch, sums.mismatch_max], &[0.1 + 0.1 + 1.0, 1.0], 1e-6);
        close(&[sums.kl], &[0.1_f64.exp() - 1.1 + (-0.1_f64).exp() - 0.9 + 1_f64.exp() - 2.0], 1e-6);
        assert_eq!(gradient, gradient.zeros_like());
    }

    #[test]
    fn a_higher_upper_bound_frees_the_token_between() {
        let [learner, proximal, sampler, advantages] = golden();
        let input = LossInput {
            learner_logprobs_N: &learner,
            proximal_logprobs_N: Some(&proximal),
            sampler_logprobs_N: &sampler,
            advantages_N: &advantages,
            trainable_tokens: 3,
        };
        let (gradient, sums) = loss(&input, CLIP);
        let free = 0.2_f64.exp();
        close(&[sums.loss, sums.clipped], &[(0.8 + 0.4 - free) / 3.0, 2.0], 1e-7);
        close(&Vec::<f64>::try_from(gradient.to_kind(Kind::Double)).unwrap(), &[-free / 3.0, 0.0, 0.0], 1e-6);
    }

    #[test]
    fn the_derivative_is_autograds_on_either_side_of_every_bound() {
        let values: Vec<f32> = (-8..=8).flat_map(|offset| [0.06 * offset as f32; 3]).collect();
        let signs: Vec<f32> = (0..values.len()).map(|index| [-0.7, 0.0, 1.3][index % 3]).collect();
        let learner = Tensor::from_slice(&values).set_requires_grad(true);
        let (proximal, advantages) = (learner.zeros_like(), Tensor::from_slice(&signs));
        let ratio = (&learner - &proximal).exp();
        let total = (-(&advantages * &ratio)).maximum(&-(&advantages * ratio.clamp(0.8, 1.28))).sum(Kind::Float) / 10.0;
        let expected = Tensor::run_backward(&[&total], &[&learner], false, false).remove(0);
        let input = LossInput {
            learner_logprobs_N: &learner.detach(),
            proximal_logprobs_N: Some(&proximal),
            sampler_logprobs_N: &proximal,
            advantages_N: &advantages,
            trainable_tokens: 10,
        };
        let (gradient, sums) = loss(&input, CLIP);
        assert!(gradient.allclose(&expected, 1e-6, 1e-7, false));
        close(&[sums.loss], &[total.double_value(&[])], 1e-5);
    }

    #[test]
    fn without_proximal_the_derivative_is_minus_the_advantage() {
        let [learner, _, sampler, advantages] = golden();
        let input =
            LossInput { learner_logprobs_N: &learner, proximal_logprobs_N: None, sampler_logprobs_N: &sampler, advantages_N: &advantages, trainable_tokens: 4 };
        let (gradient, sums) = loss(&input, CLIP);
        assert_eq!(Vec::<f32>::try_from(gradient).unwrap(), [-0.25, 0.25, 0.125]);
        close(&[sums.loss, sums.clipped], &[0.125, 0.0], 1e-9);
    }

    #[test]
    fn an_empty_micro_batch_adds_nothing() {
        let empty = Tensor::from_slice::<f32>(&[]);
        let input = LossInput { learner_logprobs_N: &empty, proximal_logprobs_N: None, sampler_logprobs_N: &empty, advantages_N: &empty, trainable_tokens: 4 };
        assert_eq!(loss(&input, CLIP).1, LossSums::default());
    }
}
