//! Reward models: the Bradley-Terry loss of pairs (Ouyang et al., arXiv 2203.02155, section 3.5,
//! with one pair per prompt).
//!
//! ```text
//!  s(y)     the model's scalar output after the last token of completion y
//!  loss     −log σ(s(chosen) − s(rejected))      derivative by the difference: σ(·) − 1
//! ```
//! The loss is the mean over the pairs of a minibatch. Rewards in statistics are s.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_protocol::batch::SampleRow;
use tch::Tensor;

use super::advantages::StepAdvantages;
use super::interface::{Objective, Signal, TokenLoss};
use super::pairs::{self, Pair, log_loss, pairs};
use super::statistics::Statistic;
use super::streams::{TokenStreams, doubles, fp32};

/// The objective.
#[derive(Clone, Copy, Debug)]
pub struct RewardModel;

impl Objective for RewardModel {
    fn signals(&self, _updates: u32) -> Vec<Signal> {
        Vec::new()
    }

    fn compared_samples(&self) -> Option<usize> {
        Some(2)
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        StepAdvantages::of_pairs(samples)
    }

    fn score_loss(&self, scores_Q: &Tensor, streams: &TokenStreams) -> TokenLoss {
        let (scores, weights) = (doubles(scores_Q), doubles(&streams.weights_N));
        let sequences = streams.sequences();
        let mut gradient = vec![0.0; scores.len()];
        let (mut loss, mut rewards) = (0.0, Vec::new());
        for Pair { chosen, rejected } in pairs(streams) {
            let weight = weights[chosen.start];
            let [chosen, rejected] =
                [chosen, rejected].map(|tokens| sequences[tokens.start] as usize);
            let (of_pair, sigma) = log_loss(scores[chosen] - scores[rejected]);
            loss += weight * of_pair;
            gradient[chosen] = weight * (sigma - 1.0);
            gradient[rejected] = -gradient[chosen];
            rewards.push([scores[chosen], scores[rejected]]);
        }
        let gradient_N = fp32(&gradient, scores_Q.device());
        TokenLoss {
            gradient_N,
            selected: None,
            loss: loss.into(),
            statistics: pairs::statistics(&rewards),
        }
    }

    fn statistics(&self) -> Vec<Statistic> {
        pairs::STATISTICS.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::metrics::{CHOSEN_REWARD, PAIR_ACCURACY, PAIR_MARGIN, REJECTED_REWARD};
    use tch::{Kind, Tensor};

    use super::RewardModel;
    use crate::objective::{Objective, Statistic, TokenStreams};

    /// Two pairs, the second with its rejected sample first; a minibatch of two.
    fn streams() -> TokenStreams {
        let sequence_N = Tensor::from_slice(&[0_i64, 0, 1, 2, 2, 3]);
        let zeros_N = Tensor::zeros([6], (Kind::Float, tch::Device::Cpu));
        TokenStreams {
            sequence_N,
            groups: vec![0, 0, 1, 1],
            truncated: vec![false; 4],
            advantages_N: Tensor::from_slice(&[1.0_f32, 1.0, -1.0, -1.0, -1.0, 1.0]),
            weights_N: zeros_N.full_like(0.5),
            sampler_logprobs_N: zeros_N,
            turn_rewards_N: None,
            turn_starts_M: None,
            reference_logprobs_N: None,
            teacher: None,
            proximal_logprobs_N: None,
            values_N: None,
            end_values_Q: None,
            returns_N: None,
            behavior: None,
        }
    }

    #[test]
    fn the_loss_has_the_value_of_the_formula_and_the_derivative_of_autograd() {
        let scores_Q = Tensor::from_slice(&[1.5_f32, 0.5, 3.0, 1.0]);
        let found = RewardModel.score_loss(&scores_Q, &streams());
        // Differences 1 and −2: (log1p(e⁻¹) + log1p(e²)) ÷ 2 by Python's math.
        assert!(
            (found.loss.value() - 1.220_094_849_280_597_8).abs() < 1e-15,
            "{}",
            found.loss.value()
        );
        let of = |name| found.statistics.get(Statistic::GroupMean(name));
        let names = [PAIR_ACCURACY, PAIR_MARGIN, CHOSEN_REWARD, REJECTED_REWARD];
        assert_eq!(names.map(of).to_vec(), [1.0, -1.0, 2.5, 3.5]);

        let scores_Q = scores_Q.set_requires_grad(true);
        let difference = |chosen, rejected| scores_Q.get(chosen) - scores_Q.get(rejected);
        let differences_2 = Tensor::stack(&[difference(0, 1), difference(3, 2)], 0);
        let loss = -differences_2.log_sigmoid().mean(Kind::Float);
        let expected_Q = Tensor::run_backward(&[&loss], &[&scores_Q], false, false).remove(0);
        assert!(found.gradient_N.allclose(&expected_Q, 1e-6, 1e-7, false));
    }
}
