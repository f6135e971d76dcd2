//! Tests of the assignment: how long ranks wait for each other, and how micro-batches are filled.

use super::{Plan, assign};
use crate::pack::cost::tests::{QWEN_1_5B, SMOL_135M};
use crate::pack::cost::{CostModel, Load};
use crate::pack::part::Member;

const MICRO_BATCH: u64 = 16_384;

/// Samples of these loads that share no prompt.
fn alone(loads: &[Load]) -> Vec<Member> {
    loads.iter().map(|load| Member::alone(0, *load)).collect()
}

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
        let plan = assign(&alone(balanced), &[minibatch], world_size, MICRO_BATCH);
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
    let plan = assign(&alone(&loads), &[minibatch], 1, MICRO_BATCH);
    let micro_batches: Vec<u32> = plan.assignments.iter().map(|place| place.micro_batch).collect();
    assert_eq!(micro_batches, [1, 0, 0, 0]);
}

#[test]
fn samples_that_leave_no_room_for_an_even_spread_are_packed_first_fit() {
    // Spread by cost, 7 and 6 would be beside 5 and 4, and 2 would not fit: 7 5 | 6 4 2 does.
    let loads: Vec<Load> =
        [7, 6, 5, 4, 2].into_iter().map(|tokens| Load { tokens, cost: 8 - tokens }).collect();
    let minibatch = 0..5;
    let plan = assign(&alone(&loads), &[minibatch], 1, 12);
    let of = |sample: usize| plan.assignments[sample].micro_batch;
    assert_eq!((of(0) == of(2), of(1) == of(3), of(3) == of(4)), (true, true, true));
    assert_eq!(plan.micro_batch_minibatch, [0, 0]);
}

/// Thirty-two groups of four samples: prompts of 64 and completions from 64 to 1,024 tokens;
/// those of a group have similar lengths.
fn members() -> Vec<Member> {
    let model = CostModel::new(&SMOL_135M);
    let length = |sample: u32| (64.0 * 16_f64.powf(f64::from(sample) / 127.0)).round() as u64;
    let member = |sample: u32| {
        let (prompt, rest) = model.shared(64, length(sample), length(sample));
        Member { group: sample / 4, prompt, rest }
    };
    (0..128).map(member).collect()
}

/// Operations of the slowest rank, summed over parts, relative to ranks with equal loads.
fn relative(costs: &[[f64; 4]]) -> f64 {
    let slowest: f64 =
        costs.iter().filter_map(|ranks| ranks.iter().copied().reduce(f64::max)).sum();
    slowest / (costs.iter().flatten().sum::<f64>() / 4.0)
}

#[test]
fn ranks_are_balanced_by_operations_in_every_micro_batch() {
    let members = members();
    let minibatch = 0..members.len();
    let plan = assign(&members, &[minibatch], 4, 8192);
    let mut costs = vec![[0.0; 4]; plan.micro_batch_minibatch.len()];
    for (member, place) in members.iter().zip(&plan.assignments) {
        costs[place.micro_batch as usize][place.rank as usize] += member.rest.cost as f64;
    }
    let total = [0, 1, 2, 3].map(|rank| costs.iter().map(|ranks| ranks[rank]).sum::<f64>());
    let figures = [relative(&[total]), relative(&costs)];
    assert!(figures[0] < 1.01 && figures[1] < 1.1, "{figures:?}: {costs:?}");
}
