//! Sample assignment: places samples on ranks and micro-batches by length alone. Ties go to the
//! lower index, so the plan is deterministic.

use std::cmp::Reverse;
use std::ops::Range;

/// Rank and micro-batch of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Assignment {
    pub rank: u32,
    pub minibatch: u32,
    /// Index over the whole step, the same on every rank.
    pub micro_batch: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// By sample.
    pub assignments: Vec<Assignment>,
    /// Minibatch of each micro-batch.
    pub micro_batch_minibatch: Vec<u32>,
}

/// Assigns samples of the given lengths; minibatch `m` has the samples `minibatches[m]`.
pub fn assign(
    lengths: &[u64],
    minibatches: &[Range<usize>],
    world_size: u32,
    max_tokens: u64,
) -> Plan {
    let mut plan = Plan {
        assignments: vec![Assignment::default(); lengths.len()],
        micro_batch_minibatch: Vec::new(),
    };
    for (minibatch, part) in (0..).zip(minibatches) {
        let first = plan.micro_batch_minibatch.len() as u32;
        let mut micro_batches = 0;
        for (rank, samples) in (0..).zip(balance(lengths, part.clone(), world_size)) {
            let bins = first_fit(&samples, max_tokens);
            micro_batches = micro_batches.max(bins.len());
            for (bin, samples) in (first..).zip(bins) {
                for sample in samples {
                    if let Some(assignment) = plan.assignments.get_mut(sample) {
                        *assignment = Assignment { rank, minibatch, micro_batch: bin };
                    }
                }
            }
        }
        plan.micro_batch_minibatch.extend(std::iter::repeat_n(minibatch, micro_batches));
    }
    plan
}

/// Assigns samples longest first to the rank with the fewest tokens (Graham's LPT rule). Returns
/// the samples of each rank with their lengths, longest first.
fn balance(lengths: &[u64], part: Range<usize>, world_size: u32) -> Vec<Vec<(usize, u64)>> {
    let of_part = lengths.iter().copied().enumerate().skip(part.start).take(part.len());
    let mut samples: Vec<(usize, u64)> = of_part.collect();
    samples.sort_by_key(|&(sample, length)| (Reverse(length), sample));
    let mut ranks = vec![(0_u64, Vec::new()); world_size as usize];
    for (sample, length) in samples {
        // The first of ranks with equally many tokens.
        let Some((tokens, rank)) = ranks.iter_mut().min_by_key(|(tokens, _)| *tokens) else {
            break;
        };
        *tokens = tokens.saturating_add(length);
        rank.push((sample, length));
    }
    ranks.into_iter().map(|(_, samples)| samples).collect()
}

/// First-fit decreasing: puts each sample into the first bin with room, else into a new bin.
fn first_fit(samples: &[(usize, u64)], max_tokens: u64) -> Vec<Vec<usize>> {
    let mut bins: Vec<(u64, Vec<usize>)> = Vec::new();
    for &(sample, length) in samples {
        match bins.iter_mut().find(|(tokens, _)| tokens.saturating_add(length) <= max_tokens) {
            Some((tokens, bin)) => {
                *tokens = tokens.saturating_add(length);
                bin.push(sample);
            }
            None => bins.push((length, vec![sample])),
        }
    }
    bins.into_iter().map(|(_, bin)| bin).collect()
}
