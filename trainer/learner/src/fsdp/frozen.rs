//! Parameters of a frozen model.

use std::cell::RefCell;
use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::gathered::{GatheredWeights, LocalShard};
use super::shards::{Buffers, failed, gather, into_shard, no_block};
use crate::model::{Gradient, ModelError, Parameters};
use crate::ranks::Ranks;

/// The parameters of a frozen model, sharded over the ranks in the compute kind. Copies share the
/// memory.
#[derive(Clone, Debug)]
pub struct FrozenParameters {
    ranks: Rc<Ranks>,
    compute: Kind,
    weights: Rc<RefCell<Weights>>,
}

#[derive(Debug)]
enum Weights {
    /// Elements of the whole block, and this rank's shard of it.
    OnHost(Vec<(i64, Tensor)>),
    OnDevice(GatheredWeights),
}

impl FrozenParameters {
    /// Keeps this rank's shards of `blocks`, flat vectors, in kind `compute`.
    ///
    /// # Errors
    /// A block cannot be read, or memory or CUDA.
    pub fn new(
        ranks: Rc<Ranks>,
        compute: Kind,
        blocks: impl IntoIterator<Item = Result<Tensor, ModelError>>,
    ) -> Result<Self, ModelError> {
        let shard = |block: Result<Tensor, ModelError>| {
            let block = block?;
            let numel = block.numel() as i64;
            let local = into_shard(block, ranks.mesh());
            Ok((numel, local.f_to_device(ranks.device())?.f_to_kind(compute)?))
        };
        let shards: Vec<_> = blocks.into_iter().map(shard).collect::<Result<_, ModelError>>()?;
        let weights = if ranks.device().is_cuda() {
            let shard = |(numel, local)| LocalShard { numel, local };
            let shards = shards.into_iter().map(shard).collect();
            let ranks = Rc::clone(&ranks);
            Weights::OnDevice(GatheredWeights::new(ranks, compute, shards, Buffers::Ring)?)
        } else {
            Weights::OnHost(shards)
        };
        Ok(Self { ranks, compute, weights: Rc::new(RefCell::new(weights)) })
    }

    /// The kind of the weights.
    pub fn compute(&self) -> Kind {
        self.compute
    }

    /// The device of the weights.
    pub fn device(&self) -> Device {
        self.ranks.device()
    }
}

impl Parameters for FrozenParameters {
    fn weights(&mut self, block: usize, next: Option<usize>) -> Result<Tensor, ModelError> {
        match &mut *self.weights.borrow_mut() {
            Weights::OnDevice(weights) => weights.get(block, next),
            Weights::OnHost(shards) => {
                let missing = || no_block("gather weights", block, shards.len());
                let (numel, local) = shards.get(block).ok_or_else(missing)?;
                gather(&self.ranks, local.shallow_clone(), *numel, block)
            }
        }
    }

    fn gradient(&mut self, block: usize) -> Result<Gradient, ModelError> {
        let frozen = std::io::Error::other("the model is frozen");
        Err(failed("provide the gradient", block, frozen))
    }

    fn add_gradient(&mut self, block: usize, _: Gradient) -> Result<(), ModelError> {
        self.gradient(block).map(drop)
    }
}
