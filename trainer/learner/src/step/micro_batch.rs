//! Micro-batches of a rank's batch: packed tokens and their streams. Pure.
//!
//! Shape suffixes: T tokens of the rank's batch or of a micro-batch, N its trained tokens.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::ops::Range;

use rljob_protocol::batch::{BatchHeader, RankBatch, Sequence};
use rljob_protocol::prompts::Prompts;
use tch::{Device, Tensor};

use super::turns::{turn_rewards, turn_starts};
use crate::model::dropout::NumberedSequence;
use crate::model::{ModelError, PackedTokens, SharedPrefix};
use crate::objective::{StepAdvantages, TokenStreams};

/// One forward and backward pass of a rank; it may be empty.
#[derive(Debug)]
pub struct MicroBatch {
    /// Minibatch (optimizer update) of the micro-batch.
    pub minibatch: u32,
    pub packed: PackedTokens,
    pub streams: TokenStreams,
}

impl MicroBatch {
    /// The micro-batch on a device, where derivatives repeat bit for bit if `deterministic`.
    #[must_use]
    pub fn to_device(self, device: Device, deterministic: bool) -> Self {
        Self {
            minibatch: self.minibatch,
            packed: self.packed.to_device(device, deterministic),
            streams: self.streams.to_device(device),
        }
    }
}

/// A batch that contradicts its table, its step and rank, or the model.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Tokens that cannot be packed.
    #[error("failed to pack micro-batch {micro_batch}")]
    Packed { micro_batch: usize, source: ModelError },
    /// The loss mask contradicts the table.
    #[error("sample {sample} has {found} trained tokens, but the step's table says {expected}")]
    Trained {
        /// Index into the table.
        sample: u32,
        found: u32,
        expected: u32,
    },
    /// Samples that the loss compares are not together.
    #[error(
        "micro-batch {micro_batch} has {found} samples of prompt group {group}, but the loss \
         compares {expected}"
    )]
    Group {
        micro_batch: usize,
        /// Number of the group in the step.
        group: usize,
        found: usize,
        expected: usize,
    },
    /// The batch of another step or rank.
    #[error("the batch is of {found}, expected {expected}")]
    Place { found: String, expected: String },
}

/// Checks that the batch is for `step` and this rank.
pub fn check_place(
    header: &BatchHeader,
    step: u32,
    rank: u32,
    world_size: u32,
) -> Result<(), BatchError> {
    let place = |step, rank, world_size| format!("step {step} for rank {rank} of {world_size}");
    let (found, expected) =
        (place(header.step, header.rank, header.world_size), place(step, rank, world_size));
    if found == expected { Ok(()) } else { Err(BatchError::Place { found, expected }) }
}

/// Checks that each prompt group has all samples that the loss compares in one micro-batch.
pub fn check_groups(
    micro_batches: &[MicroBatch],
    compared: Option<usize>,
) -> Result<(), BatchError> {
    let Some(expected) = compared else { return Ok(()) };
    for (micro_batch, MicroBatch { streams, .. }) in micro_batches.iter().enumerate() {
        for group in streams.groups.chunk_by(|one, next| one == next) {
            let (found, group) = (group.len(), group[0]);
            if found != expected {
                return Err(BatchError::Group { micro_batch, group, found, expected });
            }
        }
    }
    Ok(())
}

/// The micro-batches in order. `advantages` has one entry for each row of the step's table.
pub fn micro_batches(
    batch: &RankBatch,
    advantages: &StepAdvantages,
    prompts: Prompts,
    vocab_size: i64,
) -> Result<Vec<MicroBatch>, BatchError> {
    let mut result = Vec::with_capacity(batch.header.micro_batch_minibatch.len());
    for part in parts(batch)? {
        let Part { minibatch, sequences: mine, tokens: range, .. } = &part;
        let mask = &batch.loss_mask_T[range.clone()];
        let turn_rewards_T = turn_rewards(mine, mask, &batch.header, advantages);
        let trained_mask = effective_mask(mine, mask, advantages);
        let packed = part.packed(batch, &trained_mask, prompts, vocab_size)?;
        let teacher_logprobs_T = batch.teacher_logprobs_T.as_ref().map(|all| &all[range.clone()]);
        let streams = TokenStreams {
            turn_rewards_N: turn_rewards_T.map(|own| trained(&own, &packed)),
            turn_starts_M: Some(Tensor::from_slice(&turn_starts(mine, &trained_mask))),
            reference_logprobs_N: teacher_logprobs_T.map(|own| trained(own, &packed)),
            ..streams(mine, &packed, &batch.sampler_logprobs_T[range.clone()], advantages)
        };
        result.push(MicroBatch { minibatch: *minibatch, packed, streams });
    }
    Ok(result)
}

/// The tokens of the micro-batches in order, with all trained tokens of the batch.
pub fn packed_tokens(
    batch: &RankBatch,
    prompts: Prompts,
    vocab_size: i64,
) -> Result<Vec<PackedTokens>, BatchError> {
    let packed = |part: Part<'_>| {
        let mask = &batch.loss_mask_T[part.tokens.clone()];
        part.packed(batch, mask, prompts, vocab_size)
    };
    parts(batch)?.into_iter().map(packed).collect()
}

/// Numbers of the tokens of each micro-batch, which do not depend on its rank.
pub fn token_numbers(batch: &RankBatch) -> Result<Vec<Vec<i32>>, BatchError> {
    let of_part = |part: Part<'_>| {
        let mut rest = &batch.loss_mask_T[part.tokens.clone()];
        let sequences = part.sequences.iter().map(|sequence| {
            let (mask, after) = rest.split_at(sequence.tokens as usize);
            rest = after;
            let sample = sequence.sample;
            NumberedSequence {
                group: u64::from(batch.header.samples[sample as usize].group),
                sample: u64::from(sample),
                tokens: mask.len(),
                prompt_tokens: mask.iter().take_while(|&&trained| trained == 0).count(),
            }
        });
        sequences.flat_map(NumberedSequence::numbers).collect()
    };
    Ok(parts(batch)?.into_iter().map(of_part).collect())
}

/// Sequences of a micro-batch, and their tokens in the batch.
struct Part<'a> {
    index: usize,
    minibatch: u32,
    sequences: &'a [Sequence],
    tokens: Range<usize>,
}

impl Part<'_> {
    /// The tokens, of which those with `mask` 1 are trained.
    fn packed(
        &self,
        batch: &RankBatch,
        mask: &[u8],
        prompts: Prompts,
        vocab_size: i64,
    ) -> Result<PackedTokens, BatchError> {
        let Self { index, sequences, .. } = *self;
        let tokens = &batch.tokens_T[self.tokens.clone()];
        let lengths: Vec<usize> =
            sequences.iter().map(|sequence| sequence.tokens as usize).collect();
        let loss_mask = &batch.loss_mask_T[self.tokens.clone()];
        let prefixes = prefixes(sequences, (tokens, loss_mask), &batch.header, prompts);
        PackedTokens::with_prefixes(tokens, mask, &lengths, &prefixes, vocab_size)
            .map_err(|source| BatchError::Packed { micro_batch: index, source })
    }
}

/// The micro-batches in order, whose masks agree with the table.
fn parts(batch: &RankBatch) -> Result<Vec<Part<'_>>, BatchError> {
    let (mut start, mut sequences) = (0, batch.header.sequences.as_slice());
    let mut parts = Vec::with_capacity(batch.header.micro_batch_minibatch.len());
    for (index, &minibatch) in batch.header.micro_batch_minibatch.iter().enumerate() {
        let (mine, rest) = sequences
            .split_at(sequences.partition_point(|sequence| sequence.micro_batch as usize <= index));
        sequences = rest;
        let end = start + mine.iter().map(|sequence| sequence.tokens as usize).sum::<usize>();
        check_trained(mine, &batch.loss_mask_T[start..end], &batch.header)?;
        parts.push(Part { index, minibatch, sequences: mine, tokens: start..end });
        start = end;
    }
    Ok(parts)
}

/// Prompts that adjacent sequences of one prompt group share.
fn prefixes(
    sequences: &[Sequence],
    (tokens, mask): (&[i64], &[u8]),
    header: &BatchHeader,
    prompts: Prompts,
) -> Vec<SharedPrefix> {
    let group = |sequence: &Sequence| header.samples[sequence.sample as usize].group;
    let (mut first, mut start, mut prefixes) = (0, 0, Vec::new());
    for of_group in sequences.chunk_by(|one, next| group(one) == group(next)) {
        let parts = of_group.iter().scan(start, |end, sequence| {
            let range = *end..*end + sequence.tokens as usize;
            *end = range.end;
            Some((&tokens[range.clone()], &mask[range]))
        });
        let shared = prompts.shared_tokens(parts);
        let sequences = first..first + of_group.len();
        first = sequences.end;
        start += of_group.iter().map(|sequence| sequence.tokens as usize).sum::<usize>();
        prefixes.extend((shared > 0).then_some(SharedPrefix { sequences, tokens: shared }));
    }
    prefixes
}

/// Values of the trained tokens.
fn trained(values_T: &[f32], packed: &PackedTokens) -> Tensor {
    Tensor::from_slice(values_T).index_select(0, packed.trained_N())
}

/// Streams of the sequences without signals.
fn streams(
    sequences: &[Sequence],
    packed: &PackedTokens,
    sampler_logprobs_T: &[f32],
    advantages: &StepAdvantages,
) -> TokenStreams {
    let samples = || sequences.iter().map(|sequence| advantages.samples[sequence.sample as usize]);
    let at_tokens = |by_sequence: Vec<f32>| {
        Tensor::from_slice(&by_sequence).index_select(0, packed.sequence_N())
    };
    TokenStreams {
        sequence_N: packed.sequence_N().shallow_clone(),
        groups: samples().map(|sample| sample.group).collect(),
        truncated: samples().map(|sample| sample.truncated).collect(),
        sampler_logprobs_N: trained(sampler_logprobs_T, packed),
        advantages_N: at_tokens(samples().map(|sample| sample.advantage as f32).collect()),
        weights_N: at_tokens(samples().map(|sample| sample.weight as f32).collect()),
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

/// The mask without samples that are excluded from the loss.
fn effective_mask(sequences: &[Sequence], mask: &[u8], advantages: &StepAdvantages) -> Vec<u8> {
    let trained = |sequence: &Sequence| {
        u8::from(advantages.samples[sequence.sample as usize].trainable_tokens > 0)
    };
    let by_token = sequences
        .iter()
        .flat_map(|sequence| std::iter::repeat_n(trained(sequence), sequence.tokens as usize));
    mask.iter().zip(by_token).map(|(mask, trained)| mask * trained).collect()
}

/// Checks that masks and table agree, because denominators come from the table.
fn check_trained(
    sequences: &[Sequence],
    mask: &[u8],
    header: &BatchHeader,
) -> Result<(), BatchError> {
    let mut rest = mask;
    for sequence in sequences {
        let (mine, after) = rest.split_at(sequence.tokens as usize);
        rest = after;
        let found = mine.iter().filter(|&&mask| mask != 0).count() as u32;
        let expected = header.samples[sequence.sample as usize].trainable_tokens;
        if found != expected {
            return Err(BatchError::Trained { sample: sequence.sample, found, expected });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
