//! Mixture: maps loader positions to positions in the parts of a mixture, by their weights.
//!
//! ```text
//!  block b, positions b·1000 … b·1000 + 999: nᵢ slots of part i, in an order drawn from the seed
//!  position p of block b, slot of part i ─▶ part i, position b·nᵢ + (slots of part i before p)
//! ```
//!
//! Each block has exactly nᵢ positions of part i, with nᵢ ÷ 1000 the share of its weight by largest
//! remainders, and at least one. The order is part of the journal's format, like that of rows.

use std::num::NonZeroU64;

use parking_lot::Mutex;

use crate::data::row_order::permutation;

/// Positions of a block.
const BLOCK: NonZeroU64 = NonZeroU64::new(1000).unwrap();
/// Tells the seed of the blocks from that of the rows.
const SALT: u64 = 0x006d_6978_7475_7265;

/// The blocks of a mixture.
pub struct Mixture {
    seed: u64,
    /// Positions of each part in a block; their sum is [`BLOCK`].
    slots: Vec<u64>,
    /// Most recent block with its number.
    cache: Mutex<Option<(u64, Vec<Slot>)>>,
}

/// A position of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    part: usize,
    /// Positions of the part before this one in the block.
    before: u64,
}

impl Mixture {
    /// A mixture of parts with these positive weights.
    pub fn new(seed: u64, weights: &[f64]) -> Self {
        Self { seed, slots: slots(weights), cache: Mutex::new(None) }
    }

    /// Part of a loader position, and the position in that part.
    pub fn at(&self, position: u64) -> (usize, u64) {
        let (block, offset) = (position / BLOCK, position % BLOCK);
        let mut cache = self.cache.lock();
        if cache.as_ref().is_none_or(|(cached, _)| *cached != block) {
            *cache = Some((block, self.block(block)));
        }
        let slot = cache.as_ref().and_then(|(_, slots)| slots.get(offset as usize));
        let Slot { part, before } = slot.copied().unwrap_or(Slot { part: 0, before: 0 });
        let of_part = self.slots.get(part).copied().unwrap_or_default();
        (part, block.saturating_mul(of_part).saturating_add(before))
    }

    fn block(&self, block: u64) -> Vec<Slot> {
        let parts = self.slots.iter().enumerate();
        let parts: Vec<usize> =
            parts.flat_map(|(part, slots)| (0..*slots).map(move |_| part)).collect();
        let mut before = vec![0_u64; self.slots.len()];
        permutation(self.seed ^ SALT, block, BLOCK.get())
            .into_iter()
            .filter_map(|index| {
                let part = *parts.get(index as usize)?;
                let count = before.get_mut(part)?;
                let slot = Slot { part, before: *count };
                *count = count.saturating_add(1);
                Some(slot)
            })
            .collect()
    }
}

/// Slots of each part by largest remainders, at least one each.
fn slots(weights: &[f64]) -> Vec<u64> {
    let sum: f64 = weights.iter().sum();
    let exact = |weight: &f64| weight / sum * BLOCK.get() as f64;
    let mut slots: Vec<u64> = weights.iter().map(|weight| (exact(weight) as u64).max(1)).collect();
    let missing =
        |slots: &[u64]| (BLOCK.get() as i64).saturating_sub(slots.iter().sum::<u64>() as i64);
    while missing(&slots) != 0 {
        let step = missing(&slots).signum();
        // The part whose share differs most; the first of equal ones.
        let lack = |part: usize| {
            let share = weights.get(part).map_or(0.0, exact);
            (share - slots.get(part).copied().unwrap_or_default() as f64) * step as f64
        };
        let is_free = |part: &usize| step > 0 || slots.get(*part).is_some_and(|own| *own > 1);
        let parts = (0..slots.len()).rev().filter(is_free);
        let Some(part) = parts.max_by(|one, other| lack(*one).total_cmp(&lack(*other))) else {
            break;
        };
        if let Some(own) = slots.get_mut(part) {
            *own = own.saturating_add_signed(step);
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::{BLOCK, Mixture, slots};

    #[test]
    fn slots_are_shares_by_largest_remainders_and_no_part_has_none() {
        assert_eq!(slots(&[1.0]), [1000]);
        assert_eq!(slots(&[3.0, 1.0]), [750, 250]);
        assert_eq!(slots(&[1.0, 1.0, 1.0]), [334, 333, 333]);
        assert_eq!(slots(&[1e6, 1e-3]), [999, 1]);
        assert_eq!(slots(&[1e6, 1e-3, 1e-3]), [998, 1, 1]);
    }

    proptest! {
        #[test]
        fn every_part_serves_its_positions_once_in_order_whatever_the_access_order(
            seed: u64,
            weights in proptest::collection::vec(0.001_f64..1000.0, 1..16),
        ) {
            let mixture = Mixture::new(seed, &weights);
            let forward: Vec<_> = (0..3 * BLOCK.get()).map(|at| mixture.at(at)).collect();
            let mut backward: Vec<_> =
                (0..3 * BLOCK.get()).rev().map(|at| mixture.at(at)).collect();
            backward.reverse();
            prop_assert_eq!(&forward, &backward);
            let mut next = vec![0; weights.len()];
            for (part, position) in forward {
                prop_assert_eq!(position, next[part]);
                next[part] += 1;
            }
            let sum: f64 = weights.iter().sum();
            for (own, weight) in next.iter().zip(&weights) {
                let share = *own as f64 / 3.0 / BLOCK.get() as f64;
                prop_assert!((share - weight / sum).abs() < 0.016, "{share} of {weight}");
            }
        }
    }
}
