//! Whole blocks of a model on a GPU, gathered from the ranks' shards while other blocks compute.
//!
//! ```text
//!  compute     │ block 1        │ block 2        │ block 3
//!  collectives │ gather 2 ──────┤ gather 3 ──────┤ gather 4
//!  slots         1: ring 1   2: ring 0   3: ring 1 (once block 1 has computed)
//! ```
//! Layers share a ring of two buffers. The first and the last block, which a pass uses several
//! times, have a buffer each and are gathered once after each update; so is every block if each has
//! a buffer ([`Buffers::Own`]). A rank converts its shard into its part of the buffer before the
//! gather, so that no copy of the shards in the compute kind is kept. With one shard there are no
//! buffers: it is the block.

use std::rc::Rc;

use rljob_collective::{CollectiveError, DeviceEvent, Stream};
use tch::{Device, Kind, Tensor};

use super::shards::{Buffers, failed, no_block};
use crate::model::ModelError;
use crate::ranks::Ranks;

/// Weights of a model in the kind of its passes.
#[derive(Debug)]
pub struct GatheredWeights {
    ranks: Rc<Ranks>,
    shards: Vec<LocalShard>,
    buffers: Buffers,
    /// Empty with one shard.
    slots: Vec<Slot>,
    /// Slots whose weights a pass uses.
    in_use: Vec<usize>,
    /// The last change of the shards.
    changed: Option<DeviceEvent>,
}

/// A rank's part of a block.
#[derive(Debug)]
pub struct LocalShard {
    /// Elements of the whole block, without padding.
    pub numel: i64,
    /// In the compute kind if the model has one shard, else in any kind.
    pub local: Tensor,
}

#[derive(Debug)]
struct Slot {
    /// `[shard × shards]`, for the largest block that uses it.
    buffer: Tensor,
    block: Option<usize>,
    ready: DeviceEvent,
    free: DeviceEvent,
}

impl Slot {
    fn new(length: i64, options: (Kind, Device)) -> Result<Self, ModelError> {
        let buffer = Tensor::f_empty([length], options)?;
        let [ready, free] = [DeviceEvent::new(), DeviceEvent::new()];
        Ok(Self {
            buffer,
            block: None,
            ready: ready.map_err(buffer_error)?,
            free: free.map_err(buffer_error)?,
        })
    }
}

impl GatheredWeights {
    /// The weights, in the kind `compute`, whose shards on this rank are `shards`, which may change
    /// later ([`Self::invalidate`]).
    ///
    /// # Errors
    /// Memory or CUDA.
    pub fn new(
        ranks: Rc<Ranks>,
        compute: Kind,
        shards: Vec<LocalShard>,
        buffers: Buffers,
    ) -> Result<Self, ModelError> {
        let (mut slots, mut changed) = (Vec::new(), None);
        if let (Some(_), Some(first)) = (ranks.shard_device_group(), shards.first()) {
            let options = (compute, first.local.device());
            let count = i64::from(ranks.mesh().shards());
            let slot = |length: i64| Slot::new(length * count, options);
            let lengths = buffers.lengths(shards.iter().map(|shard| shard.local.numel()));
            slots = lengths.into_iter().map(slot).collect::<Result<_, _>>()?;
            changed = Some(DeviceEvent::new().map_err(buffer_error)?);
        }
        let mut weights = Self { ranks, shards, buffers, slots, in_use: Vec::new(), changed };
        weights.invalidate()?;
        Ok(weights)
    }

    /// The whole block `[numel]`. Gathers `next` meanwhile. A collective.
    ///
    /// # Errors
    /// The block does not exist, or a collective fails.
    pub fn get(&mut self, block: usize, next: Option<usize>) -> Result<Tensor, ModelError> {
        let missing = || no_block("gather weights", block, self.shards.len());
        let shard = self.shards.get(block).ok_or_else(missing)?;
        if self.slots.is_empty() {
            return Ok(shard.local.shallow_clone());
        }
        let (numel, slot) = (shard.numel, self.slot(block));
        let collective = |error| failed("gather weights", block, error);
        for used in std::mem::take(&mut self.in_use) {
            self.slots[used].free.record(Stream::Compute).map_err(collective)?;
        }
        self.gather(block).map_err(collective)?;
        self.slots[slot].ready.wait(Stream::Compute).map_err(collective)?;
        self.in_use.push(slot);
        if let Some(next) = next.filter(|next| self.slot(*next) != slot) {
            self.gather(next).map_err(|error| failed("gather weights", next, error))?;
        }
        Ok(self.slots[slot].buffer.f_narrow(0, 0, numel)?)
    }

    /// Notes that the shards have changed: whole blocks are gathered again.
    ///
    /// # Errors
    /// CUDA.
    pub fn invalidate(&mut self) -> Result<(), ModelError> {
        for slot in &mut self.slots {
            slot.block = None;
        }
        match &self.changed {
            Some(changed) => changed.record(Stream::Compute).map_err(buffer_error),
            None => Ok(()),
        }
    }

    fn slot(&self, block: usize) -> usize {
        self.buffers.index(block, self.shards.len())
    }

    /// Gathers a block into its slot, unless it is there.
    fn gather(&mut self, block: usize) -> Result<(), CollectiveError> {
        let index = self.slot(block);
        let (Some(group), Some(slot), Some(shard)) =
            (self.ranks.shard_device_group(), self.slots.get_mut(index), self.shards.get(block))
        else {
            return Ok(());
        };
        if slot.block == Some(block) {
            return Ok(());
        }
        if let Some(changed) = &self.changed {
            changed.wait(Stream::Of(group))?;
        }
        slot.free.wait(Stream::Of(group))?;
        let (mesh, length) = (self.ranks.mesh(), shard.local.numel() as i64);
        let whole = slot.buffer.narrow(0, 0, length * i64::from(mesh.shards()));
        if shard.local.kind() == whole.kind() {
            group.all_gather(&whole, &shard.local)?;
        } else {
            let part = whole.narrow(0, length * i64::from(mesh.shard()), length);
            group.copy(&part, &shard.local)?;
            group.all_gather(&whole, &part)?;
        }
        slot.ready.record(Stream::Of(group))?;
        slot.block = Some(block);
        Ok(())
    }
}

fn buffer_error(error: CollectiveError) -> ModelError {
    failed("prepare buffers", 0, error)
}
