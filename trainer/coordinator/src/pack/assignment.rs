//! Sample assignment: places samples on ranks by operations and in micro-batches by tokens. Ties go
//! to the lower index, so the plan is deterministic.
//!
//! Samples that share a prompt, which a micro-batch computes once, are kept together. They are
//! separated where they do not fit one micro-batch, and where that balances the ranks. Ranks wait
//! for each other in every micro-batch: each spreads its parts evenly over as many micro-batches as
//! the fullest rank needs, in descending order of operations.

use std::cmp::Reverse;
use std::ops::Range;

use super::part::{Member, Part, by_prompt};

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

/// Assigns samples of the given loads; minibatch `m` has the samples `minibatches[m]`.
pub fn assign(
    members: &[Member],
    minibatches: &[Range<usize>],
    world_size: u32,
    max_tokens: u64,
) -> Plan {
    let mut plan = Plan {
        assignments: vec![Assignment::default(); members.len()],
        micro_batch_minibatch: Vec::new(),
    };
    for (minibatch, range) in (0..).zip(minibatches) {
        let first = plan.micro_batch_minibatch.len() as u32;
        let of_minibatch = members.iter().copied().enumerate().skip(range.start).take(range.len());
        let ranks: Vec<Vec<Part>> = balance(by_prompt(of_minibatch), range.len(), world_size)
            .into_iter()
            .map(|rank| pieces(rank, max_tokens))
            .collect();
        let packed: Vec<Vec<Part>> =
            ranks.iter().map(|rank| first_fit(rank.clone(), max_tokens)).collect();
        let micro_batches = packed.iter().map(Vec::len).max().unwrap_or(0);
        for (rank, (pieces, packed)) in (0..).zip(ranks.into_iter().zip(packed)) {
            let bins = spread(pieces, micro_batches, max_tokens).unwrap_or(packed);
            for (micro_batch, bin) in (first..).zip(bins) {
                for (sample, _) in bin.samples {
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

/// Parts in descending order of operations, then in order of their first sample.
fn most_expensive_first(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|part| (Reverse(part.load.cost), part.first()));
    parts
}

/// Parts in descending order of tokens, then in order of their first sample.
fn longest_first(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|part| (Reverse(part.load.tokens), part.first()));
    parts
}

/// Parts of the ranks: groups with a prompt and single samples, the most expensive first, each on
/// the cheapest rank (Graham's LPT rule); then [`even_out`], if there are such groups.
fn balance(parts: Vec<Part>, samples: usize, world_size: u32) -> Vec<Part> {
    let has_groups = parts.iter().any(|part| part.samples.len() > 1);
    let mut ranks = vec![Part::default(); world_size as usize];
    for part in most_expensive_first(parts) {
        // The first of equally expensive ranks.
        if let Some(rank) = ranks.iter_mut().min_by_key(|rank| rank.load.cost) {
            rank.append(part);
        }
    }
    if has_groups {
        even_out(&mut ranks, samples);
    }
    ranks
}

/// Moves samples from the most expensive rank to the cheapest while that lowers the larger of the
/// two, at most `moves` times.
fn even_out(ranks: &mut [Part], moves: usize) {
    for _ in 0..moves {
        let largest =
            (0..).zip(&*ranks).max_by_key(|(rank, part)| (part.load.cost, Reverse(*rank)));
        let smallest = (0..).zip(&*ranks).min_by_key(|(_, part)| part.load.cost);
        let (Some((from, full)), Some((to, empty))) = (largest, smallest) else { return };
        let larger = |member: &Member| full.without(member).cost.max(empty.with(member).cost);
        let moved = (0..).zip(&full.samples).min_by_key(|(_, (_, member))| larger(member));
        let Some((place, _)) = moved.filter(|(_, (_, member))| larger(member) < full.load.cost)
        else {
            return;
        };
        let Some(sample) = ranks.get_mut(from).map(|part: &mut Part| part.remove(place)) else {
            return;
        };
        if let Some(part) = ranks.get_mut(to) {
            part.add(sample);
        }
    }
}

/// The groups with a prompt and the other samples of a rank; larger groups are split.
fn pieces(rank: Part, max_tokens: u64) -> Vec<Part> {
    by_prompt(rank.samples).into_iter().flat_map(|part| split(part, max_tokens)).collect()
}

/// Splits a group into parts of at most `max_tokens` tokens, or of one sample, longest first.
fn split(group: Part, max_tokens: u64) -> Vec<Part> {
    if group.load.tokens <= max_tokens {
        return vec![group];
    }
    let mut samples = group.samples;
    samples.sort_by_key(|(sample, member)| (Reverse(member.load().tokens), *sample));
    let mut parts: Vec<Part> = Vec::new();
    for sample in samples {
        match parts.iter_mut().find(|part| part.with(&sample.1).tokens <= max_tokens) {
            Some(part) => part.add(sample),
            None => parts.push(Part::of([sample])),
        }
    }
    parts
}

/// First-fit decreasing: puts each piece into the first micro-batch with room, else into a new one.
fn first_fit(pieces: Vec<Part>, max_tokens: u64) -> Vec<Part> {
    let mut bins: Vec<Part> = Vec::new();
    for piece in longest_first(pieces) {
        match bins.iter_mut().find(|bin| has_room(bin, &piece, max_tokens)) {
            Some(bin) => bin.append(piece),
            None => bins.push(piece),
        }
    }
    most_expensive_first(bins)
}

/// Divides pieces among `bins` micro-batches, the most expensive first, each into the cheapest with
/// room. `None` if a piece finds no room.
fn spread(pieces: Vec<Part>, bins: usize, max_tokens: u64) -> Option<Vec<Part>> {
    let mut bins = vec![Part::default(); bins];
    for piece in most_expensive_first(pieces) {
        let with_room = bins.iter_mut().filter(|bin| has_room(bin, &piece, max_tokens));
        with_room.min_by_key(|bin| bin.load.cost)?.append(piece);
    }
    Some(most_expensive_first(bins))
}

fn has_room(bin: &Part, piece: &Part, max_tokens: u64) -> bool {
    bin.samples.is_empty() || bin.load.plus(piece.load).tokens <= max_tokens
}

#[cfg(test)]
mod tests;
