//! Division of blocks into shards and buffers, and what all parameters of [`super`] share.

use rljob_crds::algorithm::Sharding;
use tch::{Device, Tensor};

use crate::mesh::Mesh;
use crate::model::ModelError;
use crate::ranks::Ranks;

/// Buffers that the layers of a model on a GPU share.
const RING: usize = 2;

/// Buffers of whole blocks on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// One for the first block, one for the last, and two that the layers share.
    Ring,
    /// One for each block.
    Own,
}

impl Buffers {
    /// The buffers of a model that is trained.
    pub fn of(sharding: Sharding) -> Self {
        match sharding {
            Sharding::Full | Sharding::Hybrid => Self::Ring,
            Sharding::Gradients => Self::Own,
        }
    }

    /// The buffer of a block of a model of `blocks`.
    pub fn index(self, block: usize, blocks: usize) -> usize {
        match block {
            own if self == Self::Own => own,
            0 => 0,
            last if last + 1 == blocks => 1,
            layer => 2 + layer % RING,
        }
    }

    /// Elements of the largest shard that uses each buffer; `lengths` are those of all shards.
    pub fn lengths(self, lengths: impl ExactSizeIterator<Item = usize>) -> Vec<i64> {
        let blocks = lengths.len();
        let mut largest = vec![0; if self == Self::Own { blocks } else { 2 + RING }];
        for (block, length) in lengths.enumerate() {
            let buffer = self.index(block, blocks);
            largest[buffer] = largest[buffer].max(length as i64);
        }
        largest
    }
}

/// Passes until gradients that a rank holds are summed over the ranks.
#[derive(Clone, Copy, Debug)]
pub struct PassesLeft(usize);

impl PassesLeft {
    /// Each pass is the last, until [`Self::begin`].
    pub fn one() -> Self {
        Self(1)
    }

    /// The next `passes` passes are one minibatch.
    pub fn begin(&mut self, passes: usize) {
        self.0 = passes.max(1);
    }

    pub fn is_last(self) -> bool {
        self.0 == 1
    }

    /// Ends a pass; returns whether it was the last.
    pub fn end(&mut self) -> bool {
        let was_last = self.is_last();
        self.begin(self.0 - 1);
        was_last
    }
}

/// Elements of each of `shards` shards of a block of `numel`, padding included.
pub fn shard_numel(numel: i64, shards: u32) -> i64 {
    let shards = i64::from(shards);
    (numel + shards - 1) / shards
}

/// The shard of a rank of `mesh` of the flat vector `whole`, without a copy if that is the whole
/// vector.
pub fn into_shard(whole: Tensor, mesh: Mesh) -> Tensor {
    if mesh.shards() == 1 { whole } else { shard_of(&whole, mesh.shard(), mesh.shards()) }
}

/// A copy of shard `shard` of `shards` of the flat vector `whole`, with zeros as padding.
pub fn shard_of(whole: &Tensor, shard: u32, shards: u32) -> Tensor {
    let (numel, length) = (whole.numel() as i64, shard_numel(whole.numel() as i64, shards));
    let start = (length * i64::from(shard)).min(numel);
    let end = (start + length).min(numel);
    let shard = Tensor::zeros([length], (whole.kind(), whole.device()));
    shard.narrow(0, 0, end - start).copy_(&whole.narrow(0, start, end - start));
    shard
}

/// The whole block of `numel` elements from the `local` shards of a replica, on each of its ranks.
pub fn gather(
    ranks: &Ranks,
    local: Tensor,
    numel: i64,
    block: usize,
) -> Result<Tensor, ModelError> {
    let Some(group) = ranks.shard_group() else { return Ok(local) };
    let padded = Tensor::f_empty(
        [local.numel() as i64 * i64::from(ranks.mesh().shards())],
        (local.kind(), Device::Cpu),
    )?;
    group.all_gather(&padded, &local).map_err(|error| failed("gather weights", block, error))?;
    Ok(padded.f_narrow(0, 0, numel)?)
}

/// The error of a block that the model does not have.
pub fn no_block(operation: &'static str, block: usize, blocks: usize) -> ModelError {
    failed(operation, block, std::io::Error::other(format!("the model has {blocks} blocks")))
}

/// The error of an operation on a block.
pub fn failed(
    operation: &'static str,
    block: usize,
    source: impl std::error::Error + Send + Sync + 'static,
) -> ModelError {
    ModelError::Parameters { operation, block, source: Box::new(source) }
}
