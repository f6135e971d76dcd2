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
            let bins = first_fit(lengths, &samples, max_tokens);
            micro_batches = micro_batches.max(bins.len());
            for (bin, samples) in (first..).zip(bins) {
                for sample in samples {
                    plan.assignments[sample] = Assignment { rank, minibatch, micro_batch: bin };
                }
            }
        }
        plan.micro_batch_minibatch.extend(std::iter::repeat_n(minibatch, micro_batches));
    }
    plan
}

/// Assigns samples longest first to the rank with the fewest tokens (Graham's LPT rule). Returns
/// the samples of each rank, longest first.
fn balance(lengths: &[u64], part: Range<usize>, world_size: u32) -> Vec<Vec<usize>> {
    let mut samples: Vec<usize> = part.collect();
    samples.sort_by_key(|&sample| (Reverse(lengths[sample]), sample));
    let mut ranks = vec![Vec::new(); world_size as usize];
    let mut tokens = vec![0_u64; world_size as usize];
    for sample in samples {
        let rank = (0..tokens.len()).min_by_key(|&rank| (tokens[rank], rank)).unwrap_or(0);
        tokens[rank] += lengths[sample];
        ranks[rank].push(sample);
    }
    ranks
}

/// First-fit decreasing: puts each sample into the first bin with room, else into a new bin.
fn first_fit(lengths: &[u64], samples: &[usize], max_tokens: u64) -> Vec<Vec<usize>> {
    let mut bins: Vec<(u64, Vec<usize>)> = Vec::new();
    for &sample in samples {
        let length = lengths[sample];
        match bins.iter_mut().find(|(tokens, _)| tokens.saturating_add(length) <= max_tokens) {
            Some((tokens, bin)) => {
                *tokens += length;
                bin.push(sample);
            }
            None => bins.push((length, vec![sample])),
        }
    }
    bins.into_iter().map(|(_, bin)| bin).collect()
}
