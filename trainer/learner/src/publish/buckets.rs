//! Memory of staged weights, divided into the buckets of a broadcast: consecutive blocks share an
//! allocation, so that a bucket is a view of it and costs no copy.
//!
//! ```text
//!  blocks       embedding │ layer 0 │ layer 1 │ layer 2 │ norm, head
//!  allocations [ embedding · layer 0 ][ layer 1 · layer 2 · norm, head ]   at most MAX_BUCKET
//! ```
//! A block above the limit has its own allocation and is divided between its tensors. A tensor
//! above the limit is alone in its bucket.

use std::ops::Range;

use tch::{Kind, Tensor};

use crate::model::layout::TensorSpec;
use crate::model::{Layout, ModelError, ModelLayout};

/// Maximum size of a bucket in bytes. An engine holds one bucket besides its weights.
pub const MAX_BUCKET: usize = 1 << 30;

/// Consecutive tensors of a broadcast as one vector.
#[derive(Debug)]
pub struct Bucket {
    /// Number of tensors.
    pub tensors: u32,
    /// Their bytes in order; a view of the staged weights.
    pub flat: Tensor,
}

/// A flat vector of consecutive blocks.
#[derive(Debug)]
struct Allocation {
    blocks: Range<usize>,
    flat: Tensor,
}

/// Copies of all blocks.
#[derive(Debug)]
pub struct StagedMemory {
    /// Maximum size of a bucket in bytes.
    limit: usize,
    allocations: Vec<Allocation>,
    /// The flat vector of each block; views of the allocations.
    blocks: Vec<Tensor>,
}

impl StagedMemory {
    /// Memory without blocks, for buckets of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, allocations: Vec::new(), blocks: Vec::new() }
    }

    /// Copies the next block of `layout` from its flat vector.
    ///
    /// # Errors
    /// The allocation fails, or the vector does not have the size of the block.
    pub fn push(&mut self, layout: &ModelLayout, flat: &Tensor) -> Result<(), ModelError> {
        let (index, blocks) = (self.blocks.len(), layout.blocks());
        let numels = |range: Range<usize>| {
            blocks.get(range).unwrap_or_default().iter().map(Layout::numel).collect::<Vec<_>>()
        };
        if self.allocations.last().is_none_or(|last| index >= last.blocks.end) {
            let following = numels(index..blocks.len());
            let count = fitting(&following, self.elements(flat));
            let total: i64 = following.iter().take(count).sum();
            let memory = Tensor::f_empty([total], (flat.kind(), flat.device()))?;
            self.allocations.push(Allocation { blocks: index..index + count, flat: memory });
        }
        if let Some(allocation) = self.allocations.last() {
            let offset = numels(allocation.blocks.start..index).iter().sum();
            let numel = numels(index..index + 1).iter().sum();
            let block = allocation.flat.f_narrow(0, offset, numel)?;
            block.shallow_clone().f_copy_(flat)?;
            self.blocks.push(block);
        }
        Ok(())
    }

    /// The flat vector of each block.
    pub fn blocks(&self) -> &[Tensor] {
        &self.blocks
    }

    /// All tensors of `layout` in order, as buckets.
    pub fn buckets(&self, layout: &ModelLayout) -> Vec<Bucket> {
        let buckets = |allocation: &Allocation| {
            let blocks = layout.blocks().get(allocation.blocks.clone()).unwrap_or_default();
            let sizes: Vec<i64> =
                blocks.iter().flat_map(Layout::tensors).map(TensorSpec::numel).collect();
            let (mut rest, mut offset, mut buckets) = (sizes.as_slice(), 0, Vec::new());
            while !rest.is_empty() {
                let (tensors, after) =
                    rest.split_at(fitting(rest, self.elements(&allocation.flat)));
                let numel: i64 = tensors.iter().sum();
                buckets.push(Bucket {
                    tensors: tensors.len() as u32,
                    flat: allocation.flat.narrow(0, offset, numel).view_dtype(Kind::Uint8),
                });
                (rest, offset) = (after, offset + numel);
            }
            buckets
        };
        self.allocations.iter().flat_map(buckets).collect()
    }

    /// Another handle of the same memory.
    #[must_use]
    pub fn share(&self) -> Self {
        let share = |allocation: &Allocation| Allocation {
            blocks: allocation.blocks.clone(),
            flat: allocation.flat.shallow_clone(),
        };
        Self {
            limit: self.limit,
            allocations: self.allocations.iter().map(share).collect(),
            blocks: self.blocks.iter().map(Tensor::shallow_clone).collect(),
        }
    }

    /// Elements of a bucket of the kind of `flat`.
    fn elements(&self, flat: &Tensor) -> i64 {
        (self.limit / flat.kind().elt_size_in_bytes()) as i64
    }
}

/// Number of leading `sizes` whose sum is at most `limit`, and at least one.
fn fitting(sizes: &[i64], limit: i64) -> usize {
    let mut sum = 0;
    let within = sizes.iter().take_while(|size| {
        sum += **size;
        sum <= limit
    });
    within.count().max(1).min(sizes.len())
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::{Bucket, MAX_BUCKET, StagedMemory, fitting};
    use crate::model::hugging_face::named_tensors;
    use crate::publish::tests::source;

    #[test]
    fn items_fill_a_bucket_in_order_and_a_larger_one_is_alone() {
        let fit = |sizes: &[i64]| fitting(sizes, 10);
        assert_eq!(
            [fit(&[4, 6, 1]), fit(&[4, 7]), fit(&[11, 1]), fit(&[10]), fit(&[])],
            [2, 1, 1, 1, 0]
        );
    }

    #[test]
    fn buckets_are_views_with_every_tensor_in_order_for_any_limit() {
        let (_source, layout, blocks) = source();
        let bytes = |tensor: &Tensor| tensor.reshape([-1]).view_dtype(Kind::Uint8);
        let expected: Vec<Tensor> =
            named_tensors(&layout, &blocks).iter().map(|(_, tensor)| bytes(tensor)).collect();
        let numbers = |limit| {
            let mut memory = StagedMemory::new(limit);
            for block in &blocks {
                memory.push(&layout, block).unwrap();
            }
            assert_eq!(memory.blocks(), blocks, "{limit}");
            let buckets = memory.buckets(&layout);
            let mut rest = expected.iter();
            for Bucket { tensors, flat } in &buckets {
                let own: Vec<&Tensor> = rest.by_ref().take(*tensors as usize).collect();
                assert_eq!(*flat, Tensor::cat(&own, 0), "{limit}");
                assert!(*tensors == 1 || flat.numel() <= limit, "{limit}");
            }
            assert!(rest.next().is_none());
            let first = &buckets[0].flat;
            assert_eq!(first.data_ptr(), memory.blocks()[0].data_ptr(), "a view");
            buckets.len()
        };
        assert_eq!(numbers(MAX_BUCKET), 1);
        assert_eq!(numbers(1), expected.len());
        assert!((2..expected.len()).contains(&numbers(400)));
    }
}
