//! A rank's batch, cut into the micro-batches of the passes, with what the loss needs beside the
//! tokens. Pure.
//!
//! Shape suffixes: T tokens of the rank's batch or of a micro-batch, N its trained tokens.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_protocol::batch::{BatchHeader, RankBatch, Sequence};
use tch::Tensor;

use crate::algorithm::behavior::Weights;
use crate::algorithm::table::Table;
use crate::model::{ModelError, PackedTokens};

/// One forward and backward pass of a rank; it may be empty.
#[derive(Debug)]
pub struct MicroBatch {
    /// The optimizer update it belongs to.
    pub minibatch: u32,
    /// Its sequences.
    pub packed: PackedTokens,
    /// `[N]` the sampler's log-probabilities.
    pub sampler_logprobs_N: Tensor,
    /// `[N]` the tokens' advantages.
    pub advantages_N: Tensor,
    /// `[N]` the tokens' weights in the minibatch's loss.
    pub weights_N: Tensor,
    /// The group of each sequence, numbered from 0 over the step.
    pub groups: Vec<usize>,
    /// `[N]` the reference model's log-probabilities, once they are computed.
    pub reference_logprobs_N: Option<Tensor>,
    /// `[N]` what the ratio is taken against, unless that is the learner's log-probabilities of the
    /// same pass.
    pub proximal_logprobs_N: Option<Tensor>,
    /// The behaviour weights, if they can be known before the pass.
    pub behavior: Option<Weights>,
}

/// A batch that does not fit its table, its place or the model.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Tokens that cannot be packed.
    #[error("failed to pack micro-batch {micro_batch}")]
    Packed {
        /// Which.
        micro_batch: usize,
        /// Why.
        source: ModelError,
    },
    /// The table says otherwise.
    #[error("sample {sample} has {found} trained tokens, but the step's table says {expected}")]
    Trained {
        /// Index into the table.
        sample: u32,
        /// In the mask.
        found: u32,
        /// In the table.
        expected: u32,
    },
    /// It is another step's or rank's.
    #[error("the batch is of {found}, expected {expected}")]
    Place {
        /// What came.
        found: String,
        /// What was asked for.
        expected: String,
    },
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

/// The micro-batches in order. `table` has one entry for each row of the step's table.
pub fn micro_batches(
    batch: &RankBatch,
    table: &Table,
    vocab_size: i64,
) -> Result<Vec<MicroBatch>, BatchError> {
    let (mut start, mut sequences) = (0, batch.header.sequences.as_slice());
    let mut result = Vec::with_capacity(batch.header.micro_batch_minibatch.len());
    for (index, &minibatch) in batch.header.micro_batch_minibatch.iter().enumerate() {
        let (mine, rest) = sequences
            .split_at(sequences.partition_point(|sequence| sequence.micro_batch as usize <= index));
        sequences = rest;
        let end = start + mine.iter().map(|sequence| sequence.tokens as usize).sum::<usize>();
        let (tokens, mask) = (&batch.tokens_T[start..end], &batch.loss_mask_T[start..end]);
        check_trained(mine, mask, &batch.header)?;
        let lengths: Vec<usize> = mine.iter().map(|sequence| sequence.tokens as usize).collect();
        let mask = effective_mask(mine, mask, table);
        let packed = PackedTokens::new(tokens, &mask, &lengths, vocab_size)
            .map_err(|source| BatchError::Packed { micro_batch: index, source })?;
        let entries = || mine.iter().map(|sequence| table.entries[sequence.sample as usize]);
        let at_tokens = |by_sequence: Vec<f32>| {
            Tensor::from_slice(&by_sequence).index_select(0, packed.sequence_N())
        };
        result.push(MicroBatch {
            minibatch,
            sampler_logprobs_N: Tensor::from_slice(&batch.sampler_logprobs_T[start..end])
                .index_select(0, packed.trained_N()),
            advantages_N: at_tokens(entries().map(|entry| entry.advantage as f32).collect()),
            weights_N: at_tokens(entries().map(|entry| entry.weight as f32).collect()),
            groups: entries().map(|entry| entry.group).collect(),
            packed,
            reference_logprobs_N: None,
            proximal_logprobs_N: None,
            behavior: None,
        });
        start = end;
    }
    Ok(result)
}

/// The mask without the samples that the table leaves out of the loss.
fn effective_mask(sequences: &[Sequence], mask: &[u8], table: &Table) -> Vec<u8> {
    let trained = |sequence: &Sequence| {
        u8::from(table.entries[sequence.sample as usize].trainable_tokens > 0)
    };
    let by_token = sequences
        .iter()
        .flat_map(|sequence| std::iter::repeat_n(trained(sequence), sequence.tokens as usize));
    mask.iter().zip(by_token).map(|(mask, trained)| mask * trained).collect()
}

/// Denominators come from the table, so it must agree with the masks.
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
mod tests {
    use super::{check_place, micro_batches};
    use crate::algorithm::table::{Entry, Table};
    use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
    use tch::Tensor;

    fn batch() -> RankBatch {
        let row = |trainable_tokens, minibatch| SampleRow {
            group: 0,
            reward: 0.0,
            trainable_tokens,
            rank: 1,
            minibatch,
            truncated: false,
        };
        let sequence = |sample, micro_batch, tokens| Sequence { sample, micro_batch, tokens };
        RankBatch {
            header: BatchHeader {
                step: 4,
                rank: 1,
                world_size: 2,
                micro_batch_minibatch: vec![0, 0, 1],
                sequences: vec![sequence(1, 0, 3), sequence(0, 0, 2), sequence(2, 2, 4)],
                samples: vec![row(1, 0), row(2, 0), row(2, 1)],
            },
            tokens_T: (1..10).collect(),
            loss_mask_T: vec![0, 1, 1, 0, 1, 0, 0, 1, 1],
            sampler_logprobs_T: (0..9).map(|row| -0.5 * row as f32).collect(),
        }
    }

    /// Advantages 0.25, −1, 2; weights 1, 2, 3; the groups are the samples.
    fn table(trainable: [u32; 3]) -> Table {
        let entry = |index: usize| Entry {
            group: index,
            advantage: [0.25, -1.0, 2.0][index],
            weight: (index + 1) as f64,
            trainable_tokens: trainable[index],
        };
        Table { entries: (0..3).map(entry).collect(), groups: 3 }
    }

    fn floats(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn micro_batches_carry_their_tokens_advantages_and_sampler() {
        let cut = micro_batches(&batch(), &table([1, 2, 2]), 16).unwrap();
        let view = |index: usize| {
            (
                cut[index].minibatch,
                floats(&cut[index].advantages_N),
                floats(&cut[index].sampler_logprobs_N),
            )
        };
        assert_eq!(view(0), (0, vec![-1.0, -1.0, 0.25], vec![-0.5, -1.0, -2.0]));
        assert_eq!(view(1), (0, vec![], vec![]));
        assert_eq!(view(2), (1, vec![2.0, 2.0], vec![-3.5, -4.0]));
        assert_eq!((floats(&cut[0].weights_N), &cut[0].groups), (vec![2.0, 2.0, 1.0], &vec![1, 0]));
    }

    #[test]
    fn a_sample_that_the_table_leaves_out_has_no_trained_tokens() {
        let cut = micro_batches(&batch(), &table([1, 0, 2]), 16).unwrap();
        assert_eq!((floats(&cut[0].advantages_N), cut[0].packed.num_tokens()), (vec![0.25], 5));
    }

    #[test]
    fn a_mask_that_contradicts_the_table_is_refused() {
        let mut wrong = batch();
        wrong.header.samples[2].trainable_tokens = 3;
        let error = micro_batches(&wrong, &table([1, 2, 2]), 16).unwrap_err();
        assert_eq!(error.to_string(), "sample 2 has 2 trained tokens, but the step's table says 3");
    }

    #[test]
    fn a_batch_of_another_step_is_refused() {
        let error = check_place(&batch().header, 5, 1, 2).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the batch is of step 4 for rank 1 of 2, expected step 5 for rank 1 of 2"
        );
    }
}
