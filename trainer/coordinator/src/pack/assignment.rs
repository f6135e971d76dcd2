//! Sample assignment: places samples on ranks and micro-batches by tokens and cost alone. Ties go
//! to the lower index, so the plan is deterministic.
//!
//! Ranks wait for each other in every micro-batch, so both levels are balanced by cost: samples
//! over ranks, and those of a rank over as few micro-batches as the limit of tokens allows.

use std::cmp::Reverse;
use std::ops::Range;

use super::cost::Load;

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

/// A sample, as an index into the step's.
type Item = (usize, Load);

/// Samples that share a rank or a micro-batch.
#[derive(Clone, Default)]
struct Bin {
    load: Load,
    items: Vec<Item>,
}

impl Bin {
    fn push(&mut self, item: Item) {
        self.load = self.load.plus(item.1);
        self.items.push(item);
    }

    fn has_room(&self, item: &Item, max_tokens: u64) -> bool {
        self.items.is_empty() || self.load.plus(item.1).tokens <= max_tokens
    }
}

/// Assigns samples of the given loads; minibatch `m` has the samples `minibatches[m]`.
pub fn assign(
    loads: &[Load],
    minibatches: &[Range<usize>],
    world_size: u32,
    max_tokens: u64,
) -> Plan {
    let mut plan = Plan {
        assignments: vec![Assignment::default(); loads.len()],
        micro_batch_minibatch: Vec::new(),
    };
    for (minibatch, part) in (0..).zip(minibatches) {
        let items = loads.iter().copied().enumerate().skip(part.start).take(part.len()).collect();
        let ranks = balance(items, world_size as usize, u64::MAX).unwrap_or_default();
        let packed: Vec<Vec<Bin>> =
            ranks.iter().map(|rank| first_fit(&rank.items, max_tokens)).collect();
        let micro_batches = packed.iter().map(Vec::len).max().unwrap_or(0);
        let first = plan.micro_batch_minibatch.len() as u32;
        for (rank, (whole, packed)) in (0..).zip(ranks.into_iter().zip(packed)) {
            let bins = balance(whole.items, micro_batches, max_tokens).unwrap_or(packed);
            for (micro_batch, bin) in (first..).zip(bins) {
                for (sample, _) in bin.items {
                    if let Some(assignment) = plan.assignments.get_mut(sample) {
                        *assignment = Assignment { rank, minibatch, micro_batch };
                    }
                }
            }
        }
        plan.micro_batch_minibatch.extend(std::iter::repeat_n(minibatch, micro_batches));
    }
    plan
}

/// Divides items among `bins`, the most expensive first, each to the cheapest bin with room for its
/// tokens (Graham 1969, longest processing time first). `None` if an item finds no room.
fn balance(mut items: Vec<Item>, bins: usize, max_tokens: u64) -> Option<Vec<Bin>> {
    items.sort_by_key(|(sample, load)| (Reverse(load.cost), *sample));
    let mut bins = vec![Bin::default(); bins];
    for item in items {
        // The first of bins of equal cost.
        let with_room = bins.iter_mut().filter(|bin| bin.has_room(&item, max_tokens));
        with_room.min_by_key(|bin| bin.load.cost)?.push(item);
    }
    Some(bins)
}

/// First-fit decreasing: puts each item, the longest first, into the first bin with room, else into
/// a new bin. The bins are in order of cost, so that ranks run expensive ones at the same time.
fn first_fit(items: &[Item], max_tokens: u64) -> Vec<Bin> {
    let mut items = items.to_vec();
    items.sort_by_key(|(sample, load)| (Reverse(load.tokens), *sample));
    let mut bins: Vec<Bin> = Vec::new();
    for item in items {
        if let Some(bin) = bins.iter_mut().find(|bin| bin.has_room(&item, max_tokens)) {
            bin.push(item);
        } else {
            let mut bin = Bin::default();
            bin.push(item);
            bins.push(bin);
        }
    }
    bins.sort_by_key(|bin| Reverse(bin.load.cost));
    bins
}

#[cfg(test)]
mod tests {
    use super::{Load, Plan, assign};
    use crate::pack::cost::CostModel;
    use crate::pack::cost::tests::{QWEN_1_5B, SMOL_135M};

    const MICRO_BATCH: u64 = 16_384;

    /// Loads of sequences of these lengths, all tokens trained.
    fn loads(model: &CostModel, lengths: &[u64]) -> Vec<Load> {
        lengths.iter().map(|&tokens| model.load(tokens, tokens)).collect()
    }

    /// Duration of the micro-batches, each that of its slowest rank, relative to ranks with equal
    /// loads.
    fn relative_duration(loads: &[Load], plan: &Plan, world_size: usize) -> f64 {
        let mut costs = vec![vec![0.0; world_size]; plan.micro_batch_minibatch.len()];
        for (load, place) in loads.iter().zip(&plan.assignments) {
            costs[place.micro_batch as usize][place.rank as usize] += load.cost as f64;
        }
        let slowest = |ranks: &Vec<f64>| ranks.iter().copied().fold(0.0, f64::max);
        let total: f64 = costs.iter().flatten().sum();
        costs.iter().map(slowest).sum::<f64>() / (total / world_size as f64)
    }

    /// Durations with ranks balanced by tokens, and by operations.
    fn durations(model: &CostModel, lengths: &[u64], world_size: u32) -> [f64; 2] {
        let loads = loads(model, lengths);
        let by_tokens: Vec<Load> =
            loads.iter().map(|load| Load { cost: load.tokens, ..*load }).collect();
        [&by_tokens, &loads].map(|balanced| {
            let minibatch = 0..lengths.len();
            let plan = assign(balanced, &[minibatch], world_size, MICRO_BATCH);
            relative_duration(&loads, &plan, world_size as usize)
        })
    }

    /// Lengths from 64 to 4,096, evenly spread on a logarithmic scale, in a mixed order.
    fn mixed(number: u64) -> Vec<u64> {
        let length = |index: u64| 64.0 * 64_f64.powf(index as f64 / (number - 1) as f64);
        (0..number).map(|index| length(index * 7 % number).round() as u64).collect()
    }

    #[test]
    fn ranks_with_mixed_lengths_wait_less_than_when_balanced_by_tokens() {
        for (shape, most_by_operations, least_by_tokens) in
            [(QWEN_1_5B, 1.005, 1.005), (SMOL_135M, 1.005, 1.02)]
        {
            let [tokens, operations] = durations(&CostModel::new(&shape), &mixed(32), 4);
            let figures = format!("{shape:?}: by tokens {tokens:.4}, operations {operations:.4}");
            assert!(operations <= most_by_operations && tokens >= least_by_tokens, "{figures}");
        }
    }

    #[test]
    fn few_long_sequences_beside_many_short_ones_do_not_slow_their_ranks() {
        let lengths = [vec![4096; 6], vec![64; 256]].concat();
        for (shape, least_by_tokens) in [(QWEN_1_5B, 1.02), (SMOL_135M, 1.08)] {
            let [tokens, operations] = durations(&CostModel::new(&shape), &lengths, 4);
            let figures = format!("{shape:?}: by tokens {tokens:.4}, operations {operations:.4}");
            assert!(operations <= 1.01 && tokens >= least_by_tokens, "{figures}");
        }
    }

    #[test]
    fn a_rank_spreads_its_samples_over_as_few_micro_batches_as_the_limit_allows() {
        let loads = loads(&CostModel::new(&SMOL_135M), &[9000, 6000, 5000, 2000]);
        let minibatch = 0..4;
        let plan = assign(&loads, &[minibatch], 1, MICRO_BATCH);
        let micro_batches: Vec<u32> =
            plan.assignments.iter().map(|place| place.micro_batch).collect();
        assert_eq!(micro_batches, [0, 1, 1, 1]);
    }

    #[test]
    fn samples_that_leave_no_room_for_an_even_spread_are_packed_first_fit() {
        // Spread by cost, 7 and 6 would be beside 5 and 4, and 2 would not fit: 7 5 | 6 4 2 does.
        let loads: Vec<Load> =
            [7, 6, 5, 4, 2].into_iter().map(|tokens| Load { tokens, cost: 8 - tokens }).collect();
        let minibatch = 0..5;
        let plan = assign(&loads, &[minibatch], 1, 12);
        let of = |sample: usize| plan.assignments[sample].micro_batch;
        assert_eq!((of(0) == of(2), of(1) == of(3), of(3) == of(4)), (true, true, true));
        assert_eq!(plan.micro_batch_minibatch, [0, 0]);
    }
}
