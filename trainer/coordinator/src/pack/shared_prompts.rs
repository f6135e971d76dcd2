//! Sample assignment where samples share prompts that a micro-batch computes once: places samples
//! on ranks and micro-batches by tokens alone. Ties go to the lower index, so the plan is
//! deterministic.
//!
//! Samples that share a prompt are kept together. They are separated where they do not fit one
//! micro-batch, and where that balances the ranks.

use std::cmp::Reverse;
use std::ops::Range;

use super::assignment::{Assignment, Plan};
use super::load::{Length, Load, by_prompt};

/// Assigns samples of the given lengths; minibatch `m` has the samples `minibatches[m]`.
pub fn assign(
    lengths: &[Length],
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
        for (rank, load) in (0..).zip(balance(lengths, part.clone(), world_size)) {
            let bins = first_fit(load, max_tokens);
            micro_batches = micro_batches.max(bins.len());
            for (bin, load) in (first..).zip(bins) {
                for (sample, _) in load.samples {
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

/// Loads in descending order of tokens, then in order of their first sample.
fn longest_first(mut loads: Vec<Load>) -> Vec<Load> {
    loads.sort_by_key(|load| {
        (Reverse(load.tokens), load.samples.first().map(|(sample, _)| *sample))
    });
    loads
}

/// Loads of the ranks: groups with a prompt and single samples, longest first, each on the rank
/// with the fewest tokens (Graham's LPT rule); then [`even_out`], if there are such groups.
fn balance(lengths: &[Length], part: Range<usize>, world_size: u32) -> Vec<Load> {
    let of_part = lengths.iter().copied().enumerate().skip(part.start).take(part.len());
    let loads = by_prompt(of_part);
    let has_groups = loads.iter().any(|load| load.samples.len() > 1);
    let mut ranks = vec![Load::default(); world_size as usize];
    for load in longest_first(loads) {
        // The first of ranks with equally many tokens.
        if let Some(rank) = ranks.iter_mut().min_by_key(|rank| rank.tokens) {
            rank.append(load);
        }
    }
    if has_groups {
        even_out(&mut ranks, part.len());
    }
    ranks
}

/// Moves samples from the rank with the most tokens to the one with the fewest while that lowers
/// the larger of the two, at most `moves` times.
fn even_out(ranks: &mut [Load], moves: usize) {
    for _ in 0..moves {
        let largest = (0..).zip(&*ranks).max_by_key(|(rank, load)| (load.tokens, Reverse(*rank)));
        let smallest = (0..).zip(&*ranks).min_by_key(|(_, load)| load.tokens);
        let (Some((from, full)), Some((to, empty))) = (largest, smallest) else { return };
        let larger = |length: Length| full.without(length).max(empty.with(length));
        let moved = (0..).zip(&full.samples).min_by_key(|(_, (_, length))| larger(*length));
        let Some((place, _)) = moved.filter(|(_, (_, length))| larger(*length) < full.tokens)
        else {
            return;
        };
        let Some(sample) = ranks.get_mut(from).map(|load: &mut Load| load.remove(place)) else {
            return;
        };
        if let Some(load) = ranks.get_mut(to) {
            load.add(sample);
        }
    }
}

/// First-fit decreasing: puts each group with a prompt and each other sample into the first
/// micro-batch with room, else into a new one. A larger group is split.
fn first_fit(load: Load, max_tokens: u64) -> Vec<Load> {
    let parts = by_prompt(load.samples).into_iter().flat_map(|part| split(part, max_tokens));
    let mut bins: Vec<Load> = Vec::new();
    for part in longest_first(parts.collect()) {
        let fits = |bin: &&mut Load| bin.tokens.saturating_add(part.tokens) <= max_tokens;
        match bins.iter_mut().find(fits) {
            Some(bin) => bin.append(part),
            None => bins.push(part),
        }
    }
    bins
}

/// Splits a group into parts of at most `max_tokens` tokens, or of one sample, longest first.
fn split(group: Load, max_tokens: u64) -> Vec<Load> {
    if group.tokens <= max_tokens {
        return vec![group];
    }
    let mut samples = group.samples;
    samples.sort_by_key(|(sample, length)| (Reverse(length.tokens()), *sample));
    let mut parts: Vec<Load> = Vec::new();
    for sample in samples {
        match parts.iter_mut().find(|part| part.with(sample.1) <= max_tokens) {
            Some(part) => part.add(sample),
            None => parts.push(Load::of([sample])),
        }
    }
    parts
}
