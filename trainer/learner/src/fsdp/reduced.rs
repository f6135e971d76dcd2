//! Gradients of a model on a GPU, summed over the ranks of a replica while other blocks compute.
//!
//! ```text
//!  compute     │ block 3 ─▶ ring 1 │ block 2 ─▶ ring 0 │ block 1 ─▶ ring 1
//!  collectives │                   │ sum of 3          │ sum of 2
//! ```
//! Slots are those of [`super::gathered`]. The gradient of the first block, which a tied head
//! shares, is summed when the pass ends. If each block has a slot, blocks are summed in the last
//! pass of a minibatch, once all passes have added their gradients. With one shard a pass writes to
//! it.

use std::rc::Rc;

use rljob_collective::{CollectiveError, DeviceEvent, Stream};
use tch::{Kind, Tensor};

use super::shards::{Buffers, PassesLeft, failed, no_block};
use crate::model::{Gradient, ModelError};
use crate::ranks::Ranks;

/// Gradients of this rank's shards.
#[derive(Debug)]
pub struct ReducedGradients {
    ranks: Rc<Ranks>,
    /// Elements of the whole block without padding, and this rank's part of the sum `[shard]`.
    shards: Vec<(i64, Tensor)>,
    /// Whether the shard has values since [`Self::clear`].
    has_values: Vec<bool>,
    buffers: Buffers,
    passes_left: PassesLeft,
    /// Empty with one shard.
    slots: Vec<Slot>,
    /// Memory for the largest shard, used in the order of the collectives.
    sum: Tensor,
}

#[derive(Debug)]
struct Slot {
    /// `[shard × shards]`, fp32, with zeros as padding.
    buffer: Tensor,
    /// The block whose gradient it has, until that is summed.
    block: Option<usize>,
    written: DeviceEvent,
    summed: DeviceEvent,
}

impl Slot {
    /// For shards of at most `length`.
    fn new(length: i64, ranks: &Ranks) -> Result<Self, ModelError> {
        let options = (Kind::Float, ranks.device());
        let event = || DeviceEvent::new().map_err(|error| failed("prepare buffers", 0, error));
        Ok(Self {
            buffer: Tensor::f_zeros([length * i64::from(ranks.mesh().shards())], options)?,
            block: None,
            written: event()?,
            summed: event()?,
        })
    }
}

impl ReducedGradients {
    /// Gradients that are summed into `shards`: elements of the block, and this rank's part.
    ///
    /// # Errors
    /// Memory or CUDA.
    pub fn new(
        ranks: Rc<Ranks>,
        shards: Vec<(i64, Tensor)>,
        buffers: Buffers,
    ) -> Result<Self, ModelError> {
        let mut lengths = Vec::new();
        if ranks.shard_device_group().is_some() {
            lengths = buffers.lengths(shards.iter().map(|(_, shard)| shard.numel()));
        }
        let largest = lengths.iter().max().copied().unwrap_or(0);
        let sum = Tensor::f_empty([largest], (Kind::Float, ranks.device()))?;
        let slot = |length| Slot::new(length, &ranks);
        let slots = lengths.into_iter().map(slot).collect::<Result<_, _>>()?;
        let (has_values, passes_left) = (vec![false; shards.len()], PassesLeft::one());
        Ok(Self { ranks, shards, has_values, buffers, passes_left, slots, sum })
    }

    /// The next `passes` passes are one minibatch.
    pub fn begin_minibatch(&mut self, passes: usize) {
        self.passes_left.begin(passes);
    }

    /// Memory for a part of a block's gradient.
    ///
    /// # Errors
    /// The block does not exist, or CUDA fails.
    pub fn memory(&mut self, block: usize) -> Result<Gradient, ModelError> {
        let missing = || no_block("provide the gradient", block, self.shards.len());
        let (numel, shard) = self.shards.get(block).ok_or_else(missing)?;
        let Some(slot) = self.slots.get(self.slot(block)) else {
            let has_values = self.has_values[block];
            return Ok(Gradient { flat: shard.shallow_clone(), has_values });
        };
        let has_values = slot.block == Some(block);
        if !has_values {
            let waited = slot.summed.wait(Stream::Compute);
            waited.map_err(|error| failed("provide the gradient", block, error))?;
            // A longer block that used the slot before has left its gradient in the padding.
            let padding = slot.buffer.numel() as i64 - numel;
            let _ = slot.buffer.f_narrow(0, *numel, padding)?.f_zero_()?;
        }
        Ok(Gradient { flat: slot.buffer.f_narrow(0, 0, *numel)?, has_values })
    }

    /// Takes a part of a block's gradient, in memory from [`Self::memory`]. A collective.
    ///
    /// # Errors
    /// The collective fails.
    pub fn add(&mut self, block: usize) -> Result<(), ModelError> {
        let index = self.slot(block);
        let Some(slot) = self.slots.get_mut(index) else {
            self.has_values[block] = true;
            return Ok(());
        };
        slot.block = Some(block);
        if block == 0 || self.holds() { Ok(()) } else { self.sum(index) }
    }

    /// Sums what a pass has left, unless later passes of the minibatch add to it.
    ///
    /// # Errors
    /// The collective fails.
    pub fn end_pass(&mut self) -> Result<(), ModelError> {
        let holds = self.holds();
        self.passes_left.end();
        if holds { Ok(()) } else { (0..self.slots.len()).try_for_each(|slot| self.sum(slot)) }
    }

    /// Whether this pass leaves gradients to later ones of the minibatch.
    fn holds(&self) -> bool {
        self.buffers == Buffers::Own && !self.passes_left.is_last()
    }

    fn slot(&self, block: usize) -> usize {
        self.buffers.index(block, self.shards.len())
    }

    /// Sums the gradient in a slot, if there is one, over the ranks.
    fn sum(&mut self, index: usize) -> Result<(), ModelError> {
        let (Some(group), Some(slot)) =
            (self.ranks.shard_device_group(), self.slots.get_mut(index))
        else {
            return Ok(());
        };
        let Some(block) = slot.block.take() else { return Ok(()) };
        let Some((_, shard)) = self.shards.get(block) else { return Ok(()) };
        let length = shard.numel() as i64;
        let whole = slot.buffer.f_narrow(0, 0, length * i64::from(self.ranks.mesh().shards()))?;
        let sum = self.sum.f_narrow(0, 0, length)?;
        let add = self.has_values[block];
        let reduced = (|| {
            slot.written.record(Stream::Compute)?;
            slot.written.wait(Stream::Of(group))?;
            group.reduce_scatter(if add { &sum } else { shard }, &whole)?;
            if add {
                group.add(shard, &sum)?;
            }
            slot.summed.record(Stream::Of(group))
        })();
        reduced.map_err(|error: CollectiveError| failed("reduce the gradient", block, error))?;
        self.has_values[block] = true;
        Ok(())
    }

    /// Lets libtorch's later operations wait for the sums, and sets gradients without values to
    /// zero.
    ///
    /// # Errors
    /// CUDA.
    pub fn finish(&mut self) -> Result<(), ModelError> {
        for (index, slot) in self.slots.iter().enumerate() {
            let waited = slot.summed.wait(Stream::Compute);
            waited.map_err(|error| failed("reduce the gradient", index, error))?;
        }
        for ((_, shard), has_values) in self.shards.iter().zip(&mut self.has_values) {
            if !std::mem::replace(has_values, true) {
                let _ = shard.shallow_clone().f_zero_()?;
            }
        }
        Ok(())
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        self.has_values.fill(false);
    }
}
