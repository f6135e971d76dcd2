//! Fully sharded parameters (Zhao et al. 2023, arXiv 2304.11277): each rank keeps a shard of every
//! block in fp32; a block is gathered only while it runs.
//!
//! ```text
//!  flat vector of a block, padded   │ rank 0 │ rank 1 │ … │
//!  weights(b)        all-gather in the compute kind     master shards ──▶ whole block
//!  add_gradient(b)   reduce-scatter, a sum in fp32      whole gradient ──▶ added to the shard
//! ```
//! Frozen weights ([`FrozenParameters`]) are kept in the compute kind and have no gradient.
//!
//! Blocks are flat vectors here, regardless of their tensors. A world size of 1 uses no
//! collectives.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use crate::model::{ModelError, Parameters};
use crate::ranks::Ranks;

/// Elements of a rank's shard of a block of `numel`, padding included.
pub fn shard_numel(numel: i64, world_size: u32) -> i64 {
    let world_size = i64::from(world_size);
    (numel + world_size - 1) / world_size
}

/// A copy of rank `rank`'s shard of the flat vector `whole`, with zeros as padding.
pub fn shard_of(whole: &Tensor, rank: u32, world_size: u32) -> Tensor {
    let (numel, length) = (whole.numel() as i64, shard_numel(whole.numel() as i64, world_size));
    let start = (length * i64::from(rank)).min(numel);
    let end = (start + length).min(numel);
    let shard = Tensor::zeros([length], (whole.kind(), whole.device()));
    shard.narrow(0, 0, end - start).copy_(&whole.narrow(0, start, end - start));
    shard
}

/// This rank's shard of a block.
#[derive(Debug)]
pub struct Shard {
    /// Elements of the whole block, without padding.
    pub numel: i64,
    /// fp32 master weights `[shard]`.
    pub master: Tensor,
    /// fp32 gradient `[shard]`, summed over ranks and micro-batches.
    pub gradient: Tensor,
}

/// The parameters of a model, sharded over the ranks.
#[derive(Debug)]
pub struct ShardedParameters {
    ranks: Rc<Ranks>,
    compute: Kind,
    shards: Vec<Shard>,
}

impl ShardedParameters {
    /// Parameters with `masters`, this rank's fp32 shards of blocks of `numels` elements; passes
    /// get blocks in kind `compute`.
    pub fn new(ranks: Rc<Ranks>, compute: Kind, numels: &[i64], masters: Vec<Tensor>) -> Self {
        let shard = |(&numel, master): (&i64, Tensor)| Shard {
            numel,
            gradient: master.zeros_like(),
            master,
        };
        Self { ranks, compute, shards: numels.iter().zip(masters).map(shard).collect() }
    }

    /// The kind in which blocks are gathered.
    pub fn compute(&self) -> Kind {
        self.compute
    }

    /// This rank's shards, by block.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Sets the gradients to zero.
    pub fn zero_gradients(&mut self) {
        for shard in &mut self.shards {
            let _ = shard.gradient.zero_();
        }
    }

    /// The whole block `[numel]` in the compute kind, on every rank. A collective.
    ///
    /// # Errors
    /// The block does not exist, or the collective fails.
    pub fn gather(&self, block: usize) -> Result<Tensor, ModelError> {
        let shard = self.shard("gather weights", block)?;
        gather(&self.ranks, shard.master.f_to_kind(self.compute)?, shard.numel, block)
    }

    fn shard(&self, operation: &'static str, block: usize) -> Result<&Shard, ModelError> {
        self.shards.get(block).ok_or_else(|| no_block(operation, block, self.shards.len()))
    }
}

/// The parameters of a frozen model, sharded over the ranks.
#[derive(Debug)]
pub struct FrozenParameters {
    ranks: Rc<Ranks>,
    /// Elements of the whole block, and this rank's shard of it in the compute kind.
    shards: Vec<(i64, Tensor)>,
}

impl FrozenParameters {
    /// Keeps this rank's shards of `blocks`, flat fp32 vectors, in kind `compute`.
    pub fn new(ranks: Rc<Ranks>, compute: Kind, blocks: &[Tensor]) -> Self {
        let shard = |block: &Tensor| {
            (
                block.numel() as i64,
                shard_of(block, ranks.rank(), ranks.world_size()).to_kind(compute),
            )
        };
        let shards = blocks.iter().map(shard).collect();
        Self { ranks, shards }
    }
}

impl Parameters for FrozenParameters {
    fn weights(&mut self, block: usize) -> Result<Tensor, ModelError> {
        let (numel, local) = self
            .shards
            .get(block)
            .ok_or_else(|| no_block("gather weights", block, self.shards.len()))?;
        gather(&self.ranks, local.shallow_clone(), *numel, block)
    }

    fn add_gradient(&mut self, block: usize, _: &Tensor) -> Result<(), ModelError> {
        Err(failed("add the gradient", block, std::io::Error::other("the model is frozen")))
    }
}

/// The whole block of `numel` elements from every rank's `local` shard, on every rank.
fn gather(ranks: &Ranks, local: Tensor, numel: i64, block: usize) -> Result<Tensor, ModelError> {
    let Some(group) = ranks.group() else { return Ok(local) };
    let padded = Tensor::f_empty(
        [local.numel() as i64 * i64::from(ranks.world_size())],
        (local.kind(), Device::Cpu),
    )?;
    group.all_gather(&padded, &local).map_err(|error| failed("gather weights", block, error))?;
    Ok(padded.f_narrow(0, 0, numel)?)
}

fn no_block(operation: &'static str, block: usize, blocks: usize) -> ModelError {
    failed(operation, block, std::io::Error::other(format!("the model has {blocks} blocks")))
}

impl Parameters for ShardedParameters {
    fn weights(&mut self, block: usize) -> Result<Tensor, ModelError> {
        self.gather(block)
    }

    fn add_gradient(&mut self, block: usize, gradient: &Tensor) -> Result<(), ModelError> {
        let shard = self.shard("reduce the gradient", block)?;
        let Some(group) = self.ranks.group() else {
            return Ok(shard.gradient.shallow_clone().f_add_(gradient).map(drop)?);
        };
        let padding =
            shard.gradient.numel() as i64 * i64::from(self.ranks.world_size()) - shard.numel;
        let padded = gradient.f_constant_pad_nd([0, padding])?.f_contiguous()?;
        let sum = shard.gradient.f_empty_like()?;
        group
            .reduce_scatter(&sum, &padded)
            .map_err(|error| failed("reduce the gradient", block, error))?;
        Ok(shard.gradient.shallow_clone().f_add_(&sum).map(drop)?)
    }
}

fn failed(
    operation: &'static str,
    block: usize,
    source: impl std::error::Error + Send + Sync + 'static,
) -> ModelError {
    ModelError::Parameters { operation, block, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::{FrozenParameters, ShardedParameters, shard_of};
    use crate::model::Parameters;
    use crate::ranks::Ranks;
    use std::rc::Rc;
    use tch::{Kind, Tensor};

    fn floats(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn shards_are_consecutive_and_padded_with_zeros() {
        let whole = Tensor::from_slice(&[1f32, 2., 3., 4.]);
        let shards: Vec<_> = (0..3).map(|rank| floats(&shard_of(&whole, rank, 3))).collect();
        assert_eq!(shards, [[1., 2.], [3., 4.], [0., 0.]]);
    }

    #[test]
    fn two_ranks_gather_the_whole_block_and_sum_gradients() {
        // Two threads share an address: ranks of a process group differ in their number only.
        let port =
            std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let rank = move |rank: u32| {
            let ranks = Ranks::join(("127.0.0.1", port), "127.0.0.1", rank, 2, 0).unwrap();
            let whole = Tensor::from_slice(&[1f32, 2., 3.]);
            let mut parameters =
                ShardedParameters::new(ranks, Kind::Float, &[3], vec![shard_of(&whole, rank, 2)]);
            parameters.add_gradient(0, &(&whole * f64::from(rank + 1))).unwrap();
            parameters.add_gradient(0, &whole).unwrap();
            let mut frozen =
                FrozenParameters::new(Rc::clone(&parameters.ranks), Kind::Float, &[&whole * 2.0]);
            assert_eq!(floats(&frozen.weights(0).unwrap()), [2., 4., 6.]);
            (floats(&parameters.weights(0).unwrap()), floats(&parameters.shards()[0].gradient))
        };
        let (zero, one) = std::thread::scope(|scope| {
            let (zero, one) = (scope.spawn(move || rank(0)), scope.spawn(move || rank(1)));
            (zero.join().unwrap(), one.join().unwrap())
        });
        assert_eq!(zero, (vec![1., 2., 3.], vec![5., 10.]));
        assert_eq!(one, (vec![1., 2., 3.], vec![15., 0.]));
    }

    #[test]
    fn a_frozen_model_rejects_gradients() {
        let mut frozen =
            FrozenParameters::new(Ranks::alone(), Kind::Float, &[Tensor::from_slice(&[1f32])]);
        let error = frozen.add_gradient(0, &Tensor::from_slice(&[1f32])).unwrap_err();
        assert_eq!(
            crate::error_line(&error),
            "failed to add the gradient of block 0: the model is frozen"
        );
    }

    #[test]
    fn the_error_of_a_missing_block_names_it() {
        let mut parameters = ShardedParameters::new(Ranks::alone(), Kind::Float, &[], vec![]);
        assert_eq!(
            parameters.weights(4).unwrap_err().to_string(),
            "failed to gather weights of block 4"
        );
    }
}
