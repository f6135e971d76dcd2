//! KV cache of the running requests: one slot per request, compact from slot 0, grown on demand up
//! to a budget of token positions.
//!
//! ```text
//!  storage [layers, 2 (keys, values), slots, length, kv_heads, head_dim]
//!           a request = one slot; when it ends, the last slot moves into its place
//! ```
//! Lengths are padded to a [`bucket`] and, in deterministic mode, which computes on the padding,
//! slots to a multiple of [`ROWS`].

#![expect(
    non_snake_case,
    reason = "tensors carry capital shape suffixes: S slots, L length, K key-value heads, D head \
        dimension, T tokens"
)]

use tch::{Device, Kind, TchError, Tensor};

/// The number of slots of deterministic mode is a multiple of this.
pub const ROWS: usize = 8;

/// Slots are padded to a multiple of this.
pub fn slots_of(deterministic: bool) -> usize {
    if deterministic { ROWS } else { 1 }
}

/// Attention length of a row with `tokens` positions. A pure function, so that the shapes of a row
/// never depend on other rows.
pub fn bucket(tokens: usize) -> usize {
    let grain = if tokens <= 512 { 64 } else { 256 };
    tokens.next_multiple_of(grain)
}

/// Shape of the keys and values of one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    pub layers: i64,
    pub kv_heads: i64,
    pub head_dim: i64,
    pub kind: Kind,
}

impl CacheShape {
    pub fn bytes_per_token(&self) -> u64 {
        let numbers = 2 * self.layers * self.kv_heads * self.head_dim;
        numbers as u64 * if self.kind == Kind::BFloat16 { 2 } else { 4 }
    }
}

/// Keys or values of one layer, as two views of the same memory.
#[derive(Debug)]
pub struct LayerCache {
    /// `[slots × length, kv_heads, head_dim]`; written at `slot × length + position`.
    pub cells: Tensor,
    /// `[slots, length, kv_heads, head_dim]`; read by attention.
    pub rows_SLKD: Tensor,
}

#[derive(Debug)]
pub struct KvCache {
    shape: CacheShape,
    budget: usize,
    /// The number of slots is a multiple of this.
    rows: usize,
    slots: usize,
    length: usize,
    storage: Tensor,
    layers: Vec<[LayerCache; 2]>,
}

impl KvCache {
    /// Creates an empty cache of at most `budget` token positions. A single request may exceed the
    /// budget.
    pub fn new(shape: CacheShape, budget: usize, rows: usize) -> Result<Self, TchError> {
        let storage = Tensor::f_zeros([0], (shape.kind, Device::Cpu))?;
        Ok(Self { shape, budget, rows, slots: 0, length: 0, storage, layers: Vec::new() })
    }

    /// Whether `requests` requests of up to `tokens` positions fit into the budget.
    pub fn admits(&self, requests: usize, tokens: usize) -> bool {
        requests.next_multiple_of(self.rows) * bucket(tokens) <= self.budget
    }

    /// Positions per slot.
    pub fn length(&self) -> usize {
        self.length
    }

    pub fn layer(&self, layer: usize) -> &[LayerCache; 2] {
        &self.layers[layer]
    }

    /// Grows the cache to `requests` slots of `tokens` positions. The first `keep` slots keep their
    /// contents.
    pub fn reserve(&mut self, requests: usize, tokens: usize, keep: usize) -> Result<(), TchError> {
        let need = (requests.next_multiple_of(self.rows), bucket(tokens));
        if need.0 <= self.slots && need.1 <= self.length {
            return Ok(());
        }
        // Grow by half to make growth rare; within the budget, otherwise by exactly what is needed.
        let grown = |need: usize, now: usize, multiple: usize| {
            if need <= now { now } else { need.max((now + now / 2).next_multiple_of(multiple)) }
        };
        let roomy = (grown(need.0, self.slots, self.rows), bucket(grown(need.1, self.length, 64)));
        let (slots, length) = [roomy, (need.0, roomy.1), need]
            .into_iter()
            .find(|(slots, length)| slots * length <= self.budget)
            .unwrap_or(need);
        self.resize(slots, length, keep)
    }

    fn resize(&mut self, slots: usize, length: usize, keep: usize) -> Result<(), TchError> {
        let CacheShape { layers, kv_heads, head_dim, kind } = self.shape;
        let storage = Tensor::f_zeros(
            [layers, 2, slots as i64, length as i64, kv_heads, head_dim],
            (kind, Device::Cpu),
        )?;
        if keep > 0 {
            let shared = length.min(self.length) as i64;
            let old = self.storage.f_narrow(2, 0, keep as i64)?.f_narrow(3, 0, shared)?;
            storage.f_narrow(2, 0, keep as i64)?.f_narrow(3, 0, shared)?.f_copy_(&old)?;
        }
        let view = |layer: i64, which: i64| -> Result<LayerCache, TchError> {
            let rows_SLKD = storage.f_select(0, layer)?.f_select(0, which)?;
            Ok(LayerCache { cells: rows_SLKD.f_view([-1, kv_heads, head_dim])?, rows_SLKD })
        };
        self.layers = (0..layers)
            .map(|layer| Ok([view(layer, 0)?, view(layer, 1)?]))
            .collect::<Result<_, TchError>>()?;
        (self.slots, self.length, self.storage) = (slots, length, storage);
        Ok(())
    }

    /// Writes the keys and values of a prompt, `[layers, 2, T, kv_heads, head_dim]`, to the start
    /// of `slot`.
    pub fn store(&mut self, slot: usize, kv: &Tensor) -> Result<(), TchError> {
        let tokens = kv.size()[2];
        self.storage.f_select(2, slot as i64)?.f_narrow(2, 0, tokens)?.f_copy_(kv).map(drop)
    }

    /// Copies the first `tokens` positions of slot `from` to slot `to`.
    pub fn relocate(&mut self, from: usize, to: usize, tokens: usize) -> Result<(), TchError> {
        let source = self.storage.f_select(2, from as i64)?.f_narrow(2, 0, tokens as i64)?;
        self.storage
            .f_select(2, to as i64)?
            .f_narrow(2, 0, tokens as i64)?
            .f_copy_(&source)
            .map(drop)
    }

    /// Zeroes a slot. Non-finite values would otherwise reach the next request through masked
    /// positions, because 0 · NaN is NaN.
    pub fn wipe(&mut self, slot: usize) -> Result<(), TchError> {
        self.storage.f_select(2, slot as i64)?.f_zero_().map(drop)
    }

    /// Frees the memory.
    pub fn clear(&mut self) -> Result<(), TchError> {
        *self = Self::new(self.shape, self.budget, self.rows)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheShape, KvCache, bucket};
    use tch::{Device, Kind, Tensor};

    #[test]
    fn contents_survive_growth_and_relocation() {
        let shape = CacheShape { layers: 2, kv_heads: 1, head_dim: 4, kind: Kind::Float };
        let mut cache = KvCache::new(shape, 1 << 20, super::ROWS).unwrap();
        cache.reserve(2, 10, 0).unwrap();
        let kv = Tensor::randn([2, 2, 10, 1, 4], (Kind::Float, Device::Cpu));
        cache.store(1, &kv).unwrap();
        cache.reserve(20, 100, 2).unwrap();
        cache.relocate(1, 0, 10).unwrap();
        for layer in 0..2 {
            for which in 0..2 {
                let kept = cache.layer(layer)[which].rows_SLKD.get(0).narrow(0, 0, 10);
                assert_eq!(kept, kv.get(layer as i64).get(which as i64));
            }
        }
    }

    #[test]
    fn the_budget_counts_padded_slots_times_bucketed_lengths() {
        let shape = CacheShape { layers: 1, kv_heads: 1, head_dim: 4, kind: Kind::Float };
        let cache = KvCache::new(shape, 1024, super::ROWS).unwrap();
        assert_eq!([bucket(1), bucket(64), bucket(65), bucket(513)], [64, 64, 128, 768]);
        assert_eq!(
            [cache.admits(8, 128), cache.admits(9, 64), cache.admits(17, 64), cache.admits(8, 129)],
            [true, true, false, false]
        );
    }
}
