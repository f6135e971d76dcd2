//! Batch packing: splits a step's samples into minibatches, ranks and micro-batches. Pure: equal
//! inputs give equal bytes.
//!
//! ```text
//!  prompt groups ─ split ─▶ minibatches ─ balance ─▶ ranks ─ balance ─▶ micro-batches
//! ```
//!
//! Ranks and micro-batches are balanced by floating-point operations ([`cost`]). A prompt group
//! stays in one minibatch, and, if learners compute its prompt once, in one micro-batch, unless it
//! is too large or ranks would wait for each other ([`assignment`]); else its samples go to any
//! rank. Groups whose samples are compared stay in one micro-batch ([`whole_groups`]). All ranks
//! have the same number of micro-batches per minibatch, some of them empty, because every
//! micro-batch runs collectives.
//! Must not depend on the meaning of rewards or on the algorithm.

mod assignment;
pub mod batch;
pub mod cost;
mod part;
mod whole_groups;

use std::num::NonZeroUsize;

use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, SegmentRow, Sequence};
use rljob_protocol::prompts::Prompts;

use assignment::{Assignment, Plan};
use cost::CostModel;
use part::Member;

/// A sample for the learners. `T` is its number of tokens, given and sampled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainSample {
    /// Prompt group; samples of a group are adjacent.
    pub group: u32,
    /// 0 for `sft`; of a pair, those of `rljob_protocol::batch`.
    pub reward: f64,
    /// `[T]` token ids.
    pub tokens: Vec<i64>,
    /// `[T]` 1 for trained tokens.
    pub loss_mask: Vec<u8>,
    /// `[T]` log-probability under the sampler; 0 where the mask is 0.
    pub sampler_logprobs: Vec<f32>,
    /// `[T]` log-probability under a served teacher, or the frozen model of a group; 0 where the
    /// mask is 0; empty without one.
    pub teacher_logprobs: Vec<f32>,
    /// Turns and sampling weights of the tokens, as runs that add up to `T`.
    pub segments: Vec<SegmentRow>,
    /// Reward by turn; empty for `sft`.
    pub turn_rewards: Vec<f64>,
    /// Whether the last completion reached its length limit; false for `sft`.
    pub truncated: bool,
    /// Whether a limit ended the sample: of that length, or of the workflow.
    pub ended_by_limit: bool,
    /// Whether learners compare the sample with the others of its group, so that all of them must
    /// be in one micro-batch.
    pub needs_group: bool,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PackError {
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    #[error("step {step} has no samples")]
    Empty { step: u32 },
    #[error("sample {sample} of step {step} is not adjacent to the other samples of group {group}")]
    SplitGroup { step: u32, sample: usize, group: u32 },
    #[error(
        "sample {sample} of step {step} has {tokens} tokens, {mask} mask entries \
         and {logprobs} log-probabilities"
    )]
    Malformed { step: u32, sample: usize, tokens: usize, mask: usize, logprobs: usize },
    #[error(
        "sample {sample} of step {step} has {tokens} tokens and {logprobs} log-probabilities of \
         the teacher"
    )]
    Teacher { step: u32, sample: usize, tokens: usize, logprobs: usize },
}

/// Packs a step's samples (in canonical order) for `world_size` ranks; entry `r` is rank `r`'s
/// batch. Micro-batches have at most `max_tokens` tokens, those of a shared prompt counted once; a
/// longer sequence is alone in its micro-batch.
pub fn pack(
    step: u32,
    samples: &[TrainSample],
    prompts: Prompts,
    world_size: u32,
    minibatches: u32,
    max_tokens: u32,
    costs: &CostModel,
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
    let assign = Assign { parts: &parts, world_size, max_tokens: u64::from(max_tokens) };
    let plan = assign.plan(samples, prompts, costs);
    let row = |(sample, assignment): (&TrainSample, &Assignment)| SampleRow {
        group: sample.group,
        reward: sample.reward,
        trainable_tokens: trainable_tokens(sample),
        rank: assignment.rank,
        minibatch: assignment.minibatch,
        truncated: sample.truncated,
        ended_by_limit: sample.ended_by_limit,
        turn_rewards: sample.turn_rewards.clone(),
    };
    let table: Vec<SampleRow> = samples.iter().zip(&plan.assignments).map(row).collect();
    let header = |rank| BatchHeader {
        step,
        rank,
        world_size,
        micro_batch_minibatch: plan.micro_batch_minibatch.clone(),
        sequences: sequences(samples, &plan.assignments, rank),
        samples: table.clone(),
    };
    Ok((0..world_size).map(|rank| rank_batch(samples, header(rank))).collect())
}

/// What an assignment fits samples into.
struct Assign<'a> {
    parts: &'a [std::ops::Range<usize>],
    world_size: u32,
    max_tokens: u64,
}

impl Assign<'_> {
    fn plan(&self, samples: &[TrainSample], prompts: Prompts, costs: &CostModel) -> Plan {
        let members = members(samples, prompts, costs);
        if samples.iter().any(|sample| sample.needs_group) {
            return whole_groups::assign(&members, self.parts, self.world_size, self.max_tokens);
        }
        assignment::assign(&members, self.parts, self.world_size, self.max_tokens)
    }
}

/// Loads of the samples, with the prompt that each shares with its whole group.
fn members(samples: &[TrainSample], prompts: Prompts, costs: &CostModel) -> Vec<Member> {
    let of_group = |group: &[TrainSample]| {
        let sequences = group.iter().map(|one| (one.tokens.as_slice(), one.loss_mask.as_slice()));
        let shared = prompts.shared_tokens(sequences);
        let member = |sample: &TrainSample| {
            let rest = sample.tokens.len().saturating_sub(shared);
            let trained = u64::from(trainable_tokens(sample));
            let (prompt, rest) = costs.shared(shared as u64, rest as u64, trained);
            Member { group: sample.group, prompt, rest }
        };
        group.iter().map(member).collect::<Vec<_>>()
    };
    samples.chunk_by(|one, next| one.group == next.group).flat_map(of_group).collect()
}

fn trainable_tokens(sample: &TrainSample) -> u32 {
    sample.loss_mask.iter().map(|&mask| u32::from(mask)).sum()
}

fn has_teacher(samples: &[TrainSample]) -> bool {
    samples.iter().any(|sample| !sample.teacher_logprobs.is_empty())
}

fn check(step: u32, samples: &[TrainSample]) -> Result<(), PackError> {
    let has_teacher = has_teacher(samples);
    for (index, sample) in samples.iter().enumerate() {
        let (tokens, mask, logprobs) =
            (sample.tokens.len(), sample.loss_mask.len(), sample.sampler_logprobs.len());
        if tokens == 0 || mask != tokens || logprobs != tokens {
            return Err(PackError::Malformed { step, sample: index, tokens, mask, logprobs });
        }
        let logprobs = sample.teacher_logprobs.len();
        if has_teacher && logprobs != tokens {
            return Err(PackError::Teacher { step, sample: index, tokens, logprobs });
        }
    }
    Ok(())
}

/// Sample ranges of the minibatches; minibatch `m` of `M` has the groups `m·G/M .. (m+1)·G/M`. With
/// fewer groups than minibatches, each group is a minibatch.
fn split(
    step: u32,
    samples: &[TrainSample],
    minibatches: u32,
) -> Result<Vec<std::ops::Range<usize>>, PackError> {
    let mut starts = Vec::new();
    let mut end = 0_usize;
    let mut seen = std::collections::BTreeSet::new();
    for group in samples.chunk_by(|one, next| one.group == next.group) {
        if let Some(first) = group.first().filter(|first| !seen.insert(first.group)) {
            return Err(PackError::SplitGroup { step, sample: end, group: first.group });
        }
        starts.push(end);
        end = end.saturating_add(group.len());
    }
    starts.push(end);
    let groups = seen.len();
    let Some(parts) = NonZeroUsize::new(groups.min(minibatches as usize)) else {
        return Err(PackError::Empty { step });
    };
    let start =
        |part: usize| starts.get(part.saturating_mul(groups) / parts).copied().unwrap_or(end);
    Ok((0..parts.get()).map(|part| start(part)..start(part.saturating_add(1))).collect())
}

/// A rank's sequences, sorted by micro-batch and sample.
fn sequences(samples: &[TrainSample], assignments: &[Assignment], rank: u32) -> Vec<Sequence> {
    let own = (0_u32..)
        .zip(assignments.iter().zip(samples))
        .filter(|(_, (assignment, _))| assignment.rank == rank);
    let sequence = |(index, (assignment, sample)): (u32, (&Assignment, &TrainSample))| Sequence {
        sample: index,
        micro_batch: assignment.micro_batch,
        tokens: sample.tokens.len() as u32,
        segments: sample.segments.clone(),
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
        teacher_logprobs_T: has_teacher(samples).then(Vec::new),
    };
    for sequence in &batch.header.sequences {
        let Some(sample) = samples.get(sequence.sample as usize) else { continue };
        batch.tokens_T.extend_from_slice(&sample.tokens);
        batch.loss_mask_T.extend_from_slice(&sample.loss_mask);
        batch.sampler_logprobs_T.extend_from_slice(&sample.sampler_logprobs);
        if let Some(all) = &mut batch.teacher_logprobs_T {
            all.extend_from_slice(&sample.teacher_logprobs);
        }
    }
    batch
}

#[cfg(test)]
mod tests;
