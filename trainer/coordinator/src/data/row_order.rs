//! Row order: maps loader positions to rows, in file order or by a Fisher–Yates shuffle per epoch.
//!
//! The shuffle is part of the journal's format: a resumed run must see the order that it started
//! with, in every release. RFC 8439 fixes ChaCha's output; `shuffle` of the rand crate may change.

use std::num::NonZeroU64;

use parking_lot::Mutex;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A permutation of `0..rows` for each epoch.
pub struct RowOrder {
    seed: Option<u64>,
    rows: u64,
    /// Most recent permutation with its epoch.
    cache: Mutex<Option<(u64, Vec<u64>)>>,
}

impl RowOrder {
    /// `None` as seed keeps the file order.
    pub fn new(seed: Option<u64>, rows: u64) -> Self {
        Self { seed, rows, cache: Mutex::new(None) }
    }

    /// Row index at a loader position.
    pub fn row(&self, position: u64) -> u64 {
        let rows = NonZeroU64::new(self.rows).unwrap_or(NonZeroU64::MIN);
        let (epoch, offset) = (position / rows, position % rows);
        let Some(seed) = self.seed else { return offset };
        let mut cache = self.cache.lock();
        if cache.as_ref().is_none_or(|(cached, _)| *cached != epoch) {
            *cache = Some((epoch, permutation(seed, epoch, rows.get())));
        }
        cache
            .as_ref()
            .and_then(|(_, permutation)| permutation.get(offset as usize))
            .copied()
            .unwrap_or(offset)
    }
}

/// Fisher–Yates over ChaCha20 with key = `seed` (little-endian, zero-padded) and stream = `epoch`.
pub fn permutation(seed: u64, epoch: u64, rows: u64) -> Vec<u64> {
    let mut key = [0_u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = ChaCha20Rng::from_seed(key);
    random.set_stream(epoch);
    let mut permutation: Vec<u64> = (0..rows).collect();
    for last in (1..permutation.len()).rev() {
        // Multiply-shift maps 64 random bits to 0..=last with a bias below rows ÷ 2⁶⁴.
        let below =
            u128::from(random.next_u64()).saturating_mul((last as u128).saturating_add(1)) >> 64;
        permutation.swap(last, below as usize);
    }
    permutation
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{RowOrder, permutation};

    #[test]
    fn the_shuffle_of_a_seed_and_epoch_is_fixed() {
        // Computed with an independent implementation of RFC 8439's block function (64-bit counter
        // and stream).
        assert_eq!(permutation(1, 0, 10), [1, 0, 7, 6, 8, 3, 9, 2, 4, 5]);
        assert_eq!(permutation(1, 1, 10), [8, 5, 3, 9, 2, 4, 6, 0, 7, 1]);
        assert_eq!(permutation(2, 0, 10), [7, 1, 3, 0, 4, 6, 9, 5, 8, 2]);
    }

    #[test]
    fn without_a_seed_positions_repeat_the_file_order() {
        let order = RowOrder::new(None, 3);
        assert_eq!(
            (0..7).map(|position| order.row(position)).collect::<Vec<_>>(),
            [0, 1, 2, 0, 1, 2, 0]
        );
    }

    proptest! {
        #[test]
        fn an_epoch_contains_every_row_once_in_any_access_order(
            seed: u64,
            rows in 1_u64..200,
            epoch in 0_u64..5,
        ) {
            let order = RowOrder::new(Some(seed), rows);
            let mut backwards: Vec<u64> = (epoch * rows..(epoch + 1) * rows)
                .rev()
                .map(|position| {
                    order.row(position + rows);
                    order.row(position)
                })
                .collect();
            backwards.reverse();
            prop_assert_eq!(&backwards, &permutation(seed, epoch, rows));
            backwards.sort_unstable();
            prop_assert_eq!(backwards, (0..rows).collect::<Vec<_>>());
        }
    }
}
