//! Whole blocks of a model on a GPU, gathered from the ranks' shards while other blocks compute.
//!
//! ```text
//!  compute     │ block 1        │ block 2        │ block 3
//!  collectives │ gather 2 ──────┤ gather 3 ──────┤ gather 4
//!  slots         1: ring 1   2: ring 0   3: ring 1 (once block 1 has computed)
//! ```
//! Layers share a ring of two buffers. The first and the last block, which a pass uses several
//! times, have a buffer each and are gathered once after each update. With one rank there are no
//! buffers: the shard is the block.

use std::rc::Rc;

use rljob_collective::{CollectiveError, DeviceEvent, Stream};
use tch::Tensor;

use super::shards::{SLOTS, failed, no_block, slot_of};
use crate::model::ModelError;
use crate::ranks::Ranks;

/// Weights of a model in the kind of its passes.
#[derive(Debug)]
pub struct GatheredWeights {
    ranks: Rc<Ranks>,
    shards: Vec<ComputeShard>,
    /// Empty with one rank.
    slots: Vec<Slot>,
    /// Slots whose weights a pass uses.
    in_use: Vec<usize>,
    /// The last change of the shards.
    changed: Option<DeviceEvent>,
}

/// A rank's part of a block in the compute kind.
#[derive(Debug)]
pub struct ComputeShard {
    /// Elements of the whole block, without padding.
    pub numel: i64,
    pub local: Tensor,
}

#[derive(Debug)]
struct Slot {
    /// `[shard × world size]`, for the largest block that uses it.
    buffer: Tensor,
    block: Option<usize>,
    ready: DeviceEvent,
    free: DeviceEvent,
}

impl GatheredWeights {
    /// The weights whose shards on this rank are `shards`, which may change later
    /// ([`Self::change`]).
    ///
    /// # Errors
    /// Memory or CUDA.
    pub fn new(ranks: Rc<Ranks>, shards: Vec<ComputeShard>) -> Result<Self, ModelError> {
        let mut weights =
            Self { ranks, shards, slots: Vec::new(), in_use: Vec::new(), changed: None };
        if weights.ranks.device_group().is_some() {
            weights.slots = (0..SLOTS).map(|slot| weights.slot(slot)).collect::<Result<_, _>>()?;
            weights.changed = Some(DeviceEvent::new().map_err(|error| memory(0, error))?);
            weights.change()?;
        }
        Ok(weights)
    }

    fn slot(&self, slot: usize) -> Result<Slot, ModelError> {
        let users =
            (0..self.shards.len()).filter(|block| slot_of(*block, self.shards.len()) == slot);
        let shards = users.filter_map(|block| self.shards.get(block));
        let length = shards.map(|shard| shard.local.numel() as i64).max().unwrap_or(0);
        let options =
            self.shards.first().map_or((tch::Kind::Float, self.ranks.device()), |shard| {
                (shard.local.kind(), shard.local.device())
            });
        let event = || DeviceEvent::new().map_err(|error| memory(slot, error));
        let buffer = Tensor::f_empty([length * i64::from(self.ranks.world_size())], options)?;
        Ok(Slot { buffer, block: None, ready: event()?, free: event()? })
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
        let (numel, slot) = (shard.numel, slot_of(block, self.shards.len()));
        let collective = |error| failed("gather weights", block, error);
        for used in std::mem::take(&mut self.in_use) {
            self.slots[used].free.record(Stream::Compute).map_err(collective)?;
        }
        self.gather(block).map_err(collective)?;
        self.slots[slot].ready.wait(Stream::Compute).map_err(collective)?;
        self.in_use.push(slot);
        if let Some(next) = next.filter(|next| slot_of(*next, self.shards.len()) != slot) {
            self.gather(next).map_err(|error| failed("gather weights", next, error))?;
        }
        Ok(self.slots[slot].buffer.f_narrow(0, 0, numel)?)
    }

    /// Notes that the shards have changed: whole blocks are gathered again.
    ///
    /// # Errors
    /// CUDA.
    pub fn change(&mut self) -> Result<(), ModelError> {
        for slot in &mut self.slots {
            slot.block = None;
        }
        match &self.changed {
            Some(changed) => changed.record(Stream::Compute).map_err(|error| memory(0, error)),
            None => Ok(()),
        }
    }

    /// Gathers a block into its slot, unless it is there.
    fn gather(&mut self, block: usize) -> Result<(), CollectiveError> {
        let index = slot_of(block, self.shards.len());
        let (Some(group), Some(slot), Some(shard)) =
            (self.ranks.device_group(), self.slots.get_mut(index), self.shards.get(block))
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
        let length = shard.local.numel() as i64 * i64::from(self.ranks.world_size());
        group.all_gather(&slot.buffer.narrow(0, 0, length), &shard.local)?;
        slot.ready.record(Stream::Of(group))?;
        slot.block = Some(block);
        Ok(())
    }
}

fn memory(slot: usize, error: CollectiveError) -> ModelError {
    failed("prepare buffers", slot, error)
}
