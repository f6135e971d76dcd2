//! Supervised fine-tuning: the cross entropy of the trained tokens, `−Σ weight · logp`, where a
//! weight is 1 ÷ trainable tokens of the minibatch over all ranks.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_protocol::batch::SampleRow;
use tch::Tensor;

use super::advantages::StepAdvantages;
use super::deferred::Deferred;
use super::interface::{Objective, Signal, TokenLoss};
use super::statistics::Statistics;
use super::streams::TokenStreams;
use crate::model::TokenLogprobs;

/// Supervised fine-tuning.
#[derive(Clone, Copy, Debug)]
pub struct Sft;

impl Objective for Sft {
    fn signals(&self, _minibatches: u32) -> Vec<Signal> {
        Vec::new()
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        StepAdvantages::without_rewards(samples)
    }

    fn loss(&self, policy: &TokenLogprobs, streams: &TokenStreams) -> TokenLoss {
        let (gradient_N, loss) = loss(&policy.logprobs_N, &streams.weights_N);
        TokenLoss { gradient_N, selected: None, loss, statistics: Statistics::default() }
    }
}

/// Returns (derivative of the loss with respect to each log-probability `[N]`, loss of these
/// tokens).
pub fn loss(policy_logprobs_N: &Tensor, weights_N: &Tensor) -> (Tensor, Deferred) {
    (-weights_N, Deferred::sum(&-(policy_logprobs_N * weights_N)))
}

#[cfg(test)]
mod tests {
    use super::loss;
    use tch::Tensor;

    #[test]
    fn the_loss_is_the_weighted_sum() {
        let (gradient, value) =
            loss(&Tensor::from_slice(&[-1.0_f32, -2.0]), &Tensor::from_slice(&[0.25_f32, 0.25]));
        assert_eq!(Vec::<f32>::try_from(gradient).unwrap(), [-0.25, -0.25]);
        assert!((value.value() - 0.75).abs() < 1e-9);
    }
}
