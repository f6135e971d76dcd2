//! Per-token inputs of an objective, over whole sequences of a micro-batch.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::behavior::Weights;
use crate::model::TopTokens;

/// Per-token inputs of the N trained tokens of a micro-batch, or of a chunk of it. Tokens of a
/// sequence are consecutive and in order.
#[derive(Debug)]
pub struct TokenStreams {
    /// `[N]` index of the token's sequence in the micro-batch.
    pub sequence_N: Tensor,
    /// Prompt group of each sequence, numbered from 0 over the step.
    pub groups: Vec<usize>,
    /// Whether a limit ended each sequence, so that the state after it has a value.
    pub truncated: Vec<bool>,
    /// `[N]` log-probabilities under the sampler's policy, fp32.
    pub sampler_logprobs_N: Tensor,
    /// `[N]` advantages, fp32.
    pub advantages_N: Tensor,
    /// `[N]` rewards of turns at their last tokens, fp32; those of a sequence add up to the
    /// advantage of its sample. Absent if only last turns have rewards.
    pub turn_rewards_N: Option<Tensor>,
    /// `[M]` int64, position of the first token of each of the M turns. Absent in a chunk.
    pub turn_starts_M: Option<Tensor>,
    /// `[N]` weights in the minibatch's loss, fp32.
    pub weights_N: Tensor,
    /// `[N]` log-probabilities under the reference model, fp32.
    pub reference_logprobs_N: Option<Tensor>,
    /// Most likely tokens of the teacher.
    pub teacher: Option<TopTokens>,
    /// `[N]` log-probabilities that the ratio is taken against, fp32; absent if they are those of
    /// the current policy.
    pub proximal_logprobs_N: Option<Tensor>,
    /// `[N]` values under the critic before each token, fp32.
    pub values_N: Option<Tensor>,
    /// `[Q]` value under the critic after the last token of each sequence, fp32.
    pub end_values_Q: Option<Tensor>,
    /// `[N]` returns that the critic learns, fp32.
    pub returns_N: Option<Tensor>,
    /// Behavior weights, if they are known before the pass with gradients.
    pub behavior: Option<Weights>,
}

impl TokenStreams {
    /// The streams of the tokens `range`, as views.
    #[must_use]
    pub fn narrow(&self, range: &Range<i64>) -> Self {
        let part = |tensor_N: &Tensor| tensor_N.narrow(0, range.start, range.end - range.start);
        Self {
            sequence_N: part(&self.sequence_N),
            groups: self.groups.clone(),
            truncated: self.truncated.clone(),
            sampler_logprobs_N: part(&self.sampler_logprobs_N),
            advantages_N: part(&self.advantages_N),
            turn_rewards_N: self.turn_rewards_N.as_ref().map(part),
            turn_starts_M: None,
            weights_N: part(&self.weights_N),
            reference_logprobs_N: self.reference_logprobs_N.as_ref().map(part),
            teacher: self.teacher.as_ref().map(|teacher| teacher.narrow(range)),
            proximal_logprobs_N: self.proximal_logprobs_N.as_ref().map(part),
            values_N: self.values_N.as_ref().map(part),
            end_values_Q: self.end_values_Q.as_ref().map(Tensor::shallow_clone),
            returns_N: self.returns_N.as_ref().map(part),
            behavior: self.behavior.as_ref().map(|weights| Weights {
                weight_N: part(&weights.weight_N),
                bounded_N: part(&weights.bounded_N),
            }),
        }
    }

    /// The streams on a device.
    #[must_use]
    pub fn to_device(self, device: Device) -> Self {
        let moved = |tensor_N: Tensor| tensor_N.to_device(device);
        Self {
            sequence_N: moved(self.sequence_N),
            groups: self.groups,
            truncated: self.truncated,
            sampler_logprobs_N: moved(self.sampler_logprobs_N),
            advantages_N: moved(self.advantages_N),
            turn_rewards_N: self.turn_rewards_N.map(moved),
            turn_starts_M: self.turn_starts_M.map(moved),
            weights_N: moved(self.weights_N),
            reference_logprobs_N: self.reference_logprobs_N.map(moved),
            teacher: self.teacher.map(|teacher| teacher.to_device(device)),
            proximal_logprobs_N: self.proximal_logprobs_N.map(moved),
            values_N: self.values_N.map(moved),
            end_values_Q: self.end_values_Q.map(moved),
            returns_N: self.returns_N.map(moved),
            behavior: self.behavior.map(|weights| Weights {
                weight_N: moved(weights.weight_N),
                bounded_N: moved(weights.bounded_N),
            }),
        }
    }

    /// The sequence of every token.
    pub fn sequences(&self) -> Vec<i64> {
        let mut values = vec![0; self.sequence_N.numel()];
        self.sequence_N.copy_data(&mut values, self.sequence_N.numel());
        values
    }

    /// `[Q]` int64, position after the last token of each sequence; one without tokens ends where
    /// the one before it does.
    pub fn ends_Q(&self) -> Tensor {
        let options = (Kind::Int64, self.sequence_N.device());
        let sequences_Q = Tensor::arange(self.groups.len() as i64, options);
        sequences_Q.searchsorted::<&Tensor>(&self.sequence_N, false, true, "right", None)
    }

    /// `[N]` whether each token is the last of its sequence.
    pub fn is_last_N(&self) -> Tensor {
        let end = Tensor::full([1], -1, (Kind::Int64, self.sequence_N.device()));
        self.sequence_N.diff(1, 0, None, Some(&end)).not_equal(0)
    }

    /// The prompt group of every token.
    pub fn token_groups(&self) -> impl Iterator<Item = usize> {
        self.sequences().into_iter().map(|sequence| self.groups[sequence as usize])
    }
}

/// A tensor's values in fp64.
pub fn doubles(tensor_N: &Tensor) -> Vec<f64> {
    let mut values = vec![0.0; tensor_N.numel()];
    tensor_N.to_kind(Kind::Double).copy_data(&mut values, tensor_N.numel());
    values
}

/// Values as an fp32 tensor on a device.
pub fn fp32(values: &[f64], device: Device) -> Tensor {
    Tensor::from_slice(values).to_kind(Kind::Float).to_device(device)
}
