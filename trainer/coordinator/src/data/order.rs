//! Which row stands at which position: the file's order, or a Fisher–Yates shuffle of it for each
//! epoch.
//!
//! The shuffle is written out here because it is a format: a resumed run must see the order of the
//! run that began it, whatever versions of libraries it was built with. ChaCha's output is fixed by
//! its definition; a library's `shuffle` is not.

use std::sync::{Mutex, PoisonError};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A permutation of `0..rows` for each epoch.
pub struct Order {
    seed: Option<u64>,
    rows: u64,
    /// The permutation used last, with its epoch. Only saves time.
    cache: Mutex<Option<(u64, Vec<u64>)>>,
}

impl Order {
    /// Without a seed, the file's order.
    pub fn new(seed: Option<u64>, rows: u64) -> Self {
        Self { seed, rows, cache: Mutex::new(None) }
    }

    /// The row at a position.
    pub fn row(&self, position: u64) -> u64 {
        let rows = self.rows.max(1);
        let (epoch, offset) = (position / rows, position % rows);
        let Some(seed) = self.seed else { return offset };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.as_ref().is_none_or(|(cached, _)| *cached != epoch) {
            *cache = Some((epoch, permutation(seed, epoch, rows)));
        }
        cache
            .as_ref()
            .and_then(|(_, permutation)| permutation.get(offset as usize))
            .copied()
            .unwrap_or(offset)
    }
}

/// Fisher–Yates over ChaCha20 with key = `seed` (little-endian, zero-padded) and stream = `epoch`.
fn permutation(seed: u64, epoch: u64, rows: u64) -> Vec<u64> {
    let mut key = [0_u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = ChaCha20Rng::from_seed(key);
    random.set_stream(epoch);
    let mut permutation: Vec<u64> = (0..rows).collect();
    for last in (1..permutation.len()).rev() {
        // A multiple of 2⁻⁶⁴ in [0, 1) times (last + 1): uniform up to rows ÷ 2⁶⁴.
        let below = (u128::from(random.next_u64()) * (last as u128 + 1)) >> 64;
        permutation.swap(last, below as usize);
    }
    permutation
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{Order, permutation};

    #[test]
    fn the_shuffle_of_a_seed_and_epoch_never_changes() {
        // From an implementation of RFC 8439's block function with a 64-bit counter and stream, in
        // another language.
        assert_eq!(permutation(1, 0, 10), [1, 0, 7, 6, 8, 3, 9, 2, 4, 5]);
        assert_eq!(permutation(1, 1, 10), [8, 5, 3, 9, 2, 4, 6, 0, 7, 1]);
        assert_eq!(permutation(2, 0, 10), [7, 1, 3, 0, 4, 6, 9, 5, 8, 2]);
    }

    #[test]
    fn without_a_seed_positions_follow_the_file_again_and_again() {
        let order = Order::new(None, 3);
        assert_eq!(
            (0..7).map(|position| order.row(position)).collect::<Vec<_>>(),
            [0, 1, 2, 0, 1, 2, 0]
        );
    }

    proptest! {
        #[test]
        fn an_epoch_holds_every_row_once_in_whatever_order_it_is_asked(seed: u64, rows in 1_u64..200, epoch in 0_u64..5) {
            let order = Order::new(Some(seed), rows);
            let mut backwards: Vec<u64> = (epoch * rows..(epoch + 1) * rows).rev().map(|position| { order.row(position + rows); order.row(position) }).collect();
            backwards.reverse();
            prop_assert_eq!(&backwards, &permutation(seed, epoch, rows));
            backwards.sort_unstable();
            prop_assert_eq!(backwards, (0..rows).collect::<Vec<_>>());
        }
    }
}
