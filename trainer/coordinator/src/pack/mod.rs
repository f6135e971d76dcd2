//! A step's batch, cut for the learners: which sample goes to which rank, minibatch and
//! micro-batch. Pure: the same samples and sizes, the same bytes.
//!
//! ```text
//!  groups in order ── split ─▶ minibatches ── balance by tokens ─▶ ranks ── first-fit decreasing ─▶ micro-batches
//! ```
//!
//! A group stays in one minibatch; its samples go to any rank. Every rank has as many micro-batches
//! in a minibatch as every other, some of them empty, since each one is a round of collectives. It
//! must not know rewards' meaning or the algorithm.

pub mod batch;
mod place;

use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};

use place::Place;

/// One sample as learners see it. `T` is its number of tokens, prompt and completion.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSample {
    /// Samples of one prompt share it; samples of a group stand together.
    pub group: u32,
    /// The reward; 0 for `sft`.
    pub reward: f64,
    /// `[T]` token ids.
    pub tokens: Vec<i64>,
    /// `[T]` 1 where the token is trained on.
    pub loss_mask: Vec<u8>,
    /// `[T]` the sampler's log-probability of the token; 0 where the mask is 0.
    pub sampler_logprobs: Vec<f32>,
    /// Whether the completion ended because it was as long as allowed; false for `sft`.
    pub truncated: bool,
}

/// A batch that cannot be packed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PackError {
    /// A size that must be at least 1.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// Each minibatch needs a group.
    #[error(
        "step {step} has {groups} groups for {minibatches} minibatches: lower training.minibatches or raise the batch size"
    )]
    TooFewGroups {
        /// The step.
        step: u32,
        /// Groups in the batch.
        groups: usize,
        /// Minibatches asked for.
        minibatches: u32,
    },
    /// Samples of a group do not stand together.
    #[error("sample {sample} of step {step} belongs to group {group}, which ended before it")]
    SplitGroup {
        /// The step.
        step: u32,
        /// Index of the sample.
        sample: usize,
        /// Its group.
        group: u32,
    },
    /// A sample's parts disagree, or it has no tokens.
    #[error(
        "sample {sample} of step {step} has {tokens} tokens, {mask} mask entries and {logprobs} log-probabilities"
    )]
    Malformed {
        /// The step.
        step: u32,
        /// Index of the sample.
        sample: usize,
        /// Token ids.
        tokens: usize,
        /// Mask entries.
        mask: usize,
        /// Log-probabilities.
        logprobs: usize,
    },
}

/// Packs a step's samples (in canonical order) for `world_size` ranks: entry `r` is rank `r`'s
/// batch. Micro-batches have at most `max_tokens` tokens, but for a longer sequence, which goes
/// alone.
pub fn pack(
    step: u32,
    samples: &[TrainSample],
    world_size: u32,
    minibatches: u32,
    max_tokens: u32,
) -> Result<Vec<RankBatch>, PackError> {
    for (name, size) in [
        ("world size", world_size),
        ("minibatches", minibatches),
        ("tokens per micro-batch", max_tokens),
    ] {
        if size == 0 {
            return Err(PackError::Zero(name));
        }
    }
    check(step, samples)?;
    let parts = split(step, samples, minibatches)?;
    let lengths: Vec<u64> = samples.iter().map(|sample| sample.tokens.len() as u64).collect();
    let plan = place::place(&lengths, &parts, world_size, u64::from(max_tokens));
    let row = |(sample, place): (&TrainSample, &Place)| SampleRow {
        group: sample.group,
        reward: sample.reward,
        trainable_tokens: sample.loss_mask.iter().map(|&mask| u32::from(mask)).sum(),
        rank: place.rank,
        minibatch: place.minibatch,
        truncated: sample.truncated,
    };
    let table: Vec<SampleRow> = samples.iter().zip(&plan.places).map(row).collect();
    let header = |rank| BatchHeader {
        step,
        rank,
        world_size,
        micro_batch_minibatch: plan.micro_batch_minibatch.clone(),
        sequences: sequences(samples, &plan.places, rank),
        samples: table.clone(),
    };
    Ok((0..world_size).map(|rank| rank_batch(samples, header(rank))).collect())
}

fn check(step: u32, samples: &[TrainSample]) -> Result<(), PackError> {
    for (index, sample) in samples.iter().enumerate() {
        let (tokens, mask, logprobs) =
            (sample.tokens.len(), sample.loss_mask.len(), sample.sampler_logprobs.len());
        if tokens == 0 || mask != tokens || logprobs != tokens {
            return Err(PackError::Malformed { step, sample: index, tokens, mask, logprobs });
        }
    }
    Ok(())
}

/// Minibatch `m` of `M` gets groups `m·G/M .. (m+1)·G/M`; as ranges of samples.
fn split(
    step: u32,
    samples: &[TrainSample],
    minibatches: u32,
) -> Result<Vec<std::ops::Range<usize>>, PackError> {
    let mut starts = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for (index, sample) in samples.iter().enumerate() {
        if index > 0 && samples[index - 1].group == sample.group {
            continue;
        }
        if !seen.insert(sample.group) {
            return Err(PackError::SplitGroup { step, sample: index, group: sample.group });
        }
        starts.push(index);
    }
    let groups = starts.len();
    let parts = minibatches as usize;
    if groups < parts {
        return Err(PackError::TooFewGroups { step, groups, minibatches });
    }
    starts.push(samples.len());
    Ok((0..parts)
        .map(|part| starts[part * groups / parts]..starts[(part + 1) * groups / parts])
        .collect())
}

/// A rank's sequences by micro-batch, then in canonical order.
fn sequences(samples: &[TrainSample], places: &[Place], rank: u32) -> Vec<Sequence> {
    let own = places.iter().zip(samples).zip(0_u32..).filter(|((place, _), _)| place.rank == rank);
    let sequence = |((place, sample), index): ((&Place, &TrainSample), u32)| Sequence {
        sample: index,
        micro_batch: place.micro_batch,
        tokens: sample.tokens.len() as u32,
    };
    let mut sequences: Vec<Sequence> = own.map(sequence).collect();
    sequences.sort_by_key(|sequence| (sequence.micro_batch, sequence.sample));
    sequences
}

fn rank_batch(samples: &[TrainSample], header: BatchHeader) -> RankBatch {
    let mut batch = RankBatch {
        header,
        tokens_T: Vec::new(),
        loss_mask_T: Vec::new(),
        sampler_logprobs_T: Vec::new(),
    };
    for sequence in &batch.header.sequences {
        let sample = &samples[sequence.sample as usize];
        batch.tokens_T.extend_from_slice(&sample.tokens);
        batch.loss_mask_T.extend_from_slice(&sample.loss_mask);
        batch.sampler_logprobs_T.extend_from_slice(&sample.sampler_logprobs);
    }
    batch
}

#[cfg(test)]
mod tests;
