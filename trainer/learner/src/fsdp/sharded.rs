//! Parameters of a model that is trained.

use std::rc::Rc;

use rljob_crds::algorithm::Sharding;
use tch::{Device, Kind, Tensor};

use super::flat::Flat;
use super::gathered::{GatheredWeights, LocalShard};
use super::held::HeldBlocks;
use super::reduced::ReducedGradients;
use super::replicas::sum_over_replicas;
use super::shards::{Buffers, PassesLeft, failed, gather, no_block};
use crate::model::{Gradient, ModelError, Parameters};
use crate::ranks::Ranks;

/// What passes get and give.
#[derive(Clone, Copy, Debug)]
pub struct Passes {
    /// Kind of gathered weights.
    pub compute: Kind,
    pub sharding: Sharding,
    /// Whether fp32 weights of a model on a GPU whose passes use bfloat16 are in memory of the
    /// host.
    pub offload: bool,
}

impl Passes {
    /// Passes in `compute` that gather weights and sum gradients each.
    pub fn full(compute: Kind) -> Self {
        Self { compute, sharding: Sharding::Full, offload: false }
    }
}

/// This rank's shard of a block.
#[derive(Debug)]
pub struct Shard {
    /// Elements of the whole block, without padding.
    pub numel: i64,
    /// fp32 master weights `[shard]`.
    pub master: Tensor,
    /// fp32 gradient `[shard]`, summed over micro-batches and the ranks of a replica, and over all
    /// ranks after [`ShardedParameters::finish_gradients`].
    pub gradient: Tensor,
}

/// The parameters of a model, sharded over the ranks.
#[derive(Debug)]
pub struct ShardedParameters {
    ranks: Rc<Ranks>,
    compute: Kind,
    shards: Vec<Shard>,
    passes_left: PassesLeft,
    /// Blocks of several ranks on CPUs that are sharded between updates only.
    held: Option<HeldBlocks>,
    on_device: Option<OnDevice>,
}

/// State of parameters on a GPU.
#[derive(Debug)]
struct OnDevice {
    vectors: DeviceVectors,
    weights: GatheredWeights,
    gradients: ReducedGradients,
}

/// Vectors of all blocks of this rank on a GPU, of one length.
#[derive(Debug)]
pub struct DeviceVectors {
    /// fp32 master weights.
    pub master: Flat,
    /// fp32 gradients.
    pub gradient: Tensor,
    /// The weights in bfloat16, if passes use these and this rank has them whole, or `master` is in
    /// memory of the host.
    pub copy: Option<Tensor>,
}

impl ShardedParameters {
    /// Parameters with `masters`, this rank's fp32 shards of blocks of `numels` elements, on the
    /// device of the ranks.
    ///
    /// # Errors
    /// Memory or CUDA.
    pub fn new(
        ranks: Rc<Ranks>,
        passes: Passes,
        numels: &[i64],
        masters: Vec<Tensor>,
    ) -> Result<Self, ModelError> {
        if ranks.device().is_cuda() {
            return Self::on_device(ranks, passes, numels, &masters);
        }
        let shard = |(&numel, master): (&i64, Tensor)| Shard {
            numel,
            gradient: master.zeros_like(),
            master,
        };
        let shards: Vec<Shard> = numels.iter().zip(masters).map(shard).collect();
        let holds = passes.sharding == Sharding::Gradients && ranks.shard_group().is_some();
        let held = holds.then(|| HeldBlocks::new(shards.len()));
        let (compute, passes_left) = (passes.compute, PassesLeft::one());
        Ok(Self { ranks, compute, shards, passes_left, held, on_device: None })
    }

    fn on_device(
        ranks: Rc<Ranks>,
        Passes { compute, sharding, offload }: Passes,
        numels: &[i64],
        masters: &[Tensor],
    ) -> Result<Self, ModelError> {
        let (device, buffers) = (ranks.device(), Buffers::of(sharding));
        let lengths: Vec<i64> = masters.iter().map(|master| master.numel() as i64).collect();
        let is_bf16 = compute == Kind::BFloat16;
        let on_host = offload && is_bf16;
        let master = if on_host {
            Flat::pinned_copy(masters, device)?
        } else {
            Flat::of(masters, Kind::Float, device)?
        };
        let gradient = Flat::zeros(&lengths, Kind::Float, device)?;
        let is_whole = ranks.shard_device_group().is_none();
        let copy = (on_host || (is_whole && is_bf16))
            .then(|| Flat::of(masters, Kind::BFloat16, device))
            .transpose()?;
        let locals = copy.as_ref().map_or(&master.blocks, |copy| &copy.blocks).iter();
        let local =
            |(&numel, local): (&i64, &Tensor)| LocalShard { numel, local: local.shallow_clone() };
        let weights = GatheredWeights::new(
            Rc::clone(&ranks),
            compute,
            numels.iter().zip(locals).map(local).collect(),
            buffers,
        )?;
        let sums = numels.iter().copied().zip(gradient.blocks.iter().map(Tensor::shallow_clone));
        let gradients = ReducedGradients::new(Rc::clone(&ranks), sums.collect(), buffers)?;
        let blocks = master.blocks.iter().map(Tensor::shallow_clone).zip(gradient.blocks);
        let shards = numels.iter().zip(blocks);
        let shards = shards.map(|(&numel, (master, gradient))| Shard { numel, master, gradient });
        let shards = shards.collect();
        let vectors =
            DeviceVectors { master, gradient: gradient.whole, copy: copy.map(|copy| copy.whole) };
        let passes_left = PassesLeft::one();
        let on_device = Some(OnDevice { vectors, weights, gradients });
        Ok(Self { ranks, compute, shards, passes_left, held: None, on_device })
    }

    /// The kind in which blocks are gathered.
    pub fn compute(&self) -> Kind {
        self.compute
    }

    /// This rank's shards, by block.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The vectors of all shards, if they are on a GPU.
    pub fn device_vectors(&self) -> Option<&DeviceVectors> {
        self.on_device.as_ref().map(|on_device| &on_device.vectors)
    }

    /// Announces the passes with gradients until the next update, the same number on every rank.
    /// Without it, each pass sums its gradients over the ranks.
    pub fn begin_minibatch(&mut self, passes: usize) {
        match &mut self.on_device {
            Some(on_device) => on_device.gradients.begin_minibatch(passes),
            None => self.passes_left.begin(passes),
        }
    }

    /// Completes the sums of gradients over the ranks, once before they are read. A collective.
    ///
    /// # Errors
    /// CUDA or the collective fails.
    pub fn finish_gradients(&mut self) -> Result<(), ModelError> {
        if let Some(on_device) = &mut self.on_device {
            on_device.gradients.finish()?;
        }
        sum_over_replicas(&self.ranks, self.shards.iter().map(|shard| &shard.gradient))
    }

    /// Ends an update: gradients start from zero, and changed weights are gathered again.
    ///
    /// # Errors
    /// CUDA.
    pub fn end_update(&mut self) -> Result<(), ModelError> {
        if let Some(on_device) = &mut self.on_device {
            on_device.gradients.clear();
            return on_device.weights.invalidate();
        }
        if let Some(held) = &mut self.held {
            held.clear();
        }
        for shard in &mut self.shards {
            let _ = shard.gradient.zero_();
        }
        Ok(())
    }

    /// The whole block `[numel]` in the compute kind, on every rank. A collective.
    ///
    /// # Errors
    /// The block does not exist, or the collective fails.
    pub fn gather(&mut self, block: usize) -> Result<Tensor, ModelError> {
        if let Some(on_device) = &mut self.on_device {
            return on_device.weights.get(block, None);
        }
        let shard = self.shard("gather weights", block)?;
        gather(&self.ranks, shard.master.f_to_kind(self.compute)?, shard.numel, block)
    }

    /// Sums a block's gradient `[numel]` over the ranks of a replica and adds this rank's part to
    /// its shard.
    fn reduce(&self, block: usize, gradient: &Tensor) -> Result<(), ModelError> {
        let shard = self.shard("reduce the gradient", block)?;
        let Some(group) = self.ranks.shard_group() else {
            return Ok(shard.gradient.shallow_clone().f_add_(gradient).map(drop)?);
        };
        let padding =
            shard.gradient.numel() as i64 * i64::from(self.ranks.mesh().shards()) - shard.numel;
        let padded = gradient.f_constant_pad_nd([0, padding])?.f_contiguous()?;
        let sum = shard.gradient.f_empty_like()?;
        group
            .reduce_scatter(&sum, &padded)
            .map_err(|error| failed("reduce the gradient", block, error))?;
        Ok(shard.gradient.shallow_clone().f_add_(&sum).map(drop)?)
    }

    fn shard(&self, operation: &'static str, block: usize) -> Result<&Shard, ModelError> {
        self.shards.get(block).ok_or_else(|| no_block(operation, block, self.shards.len()))
    }
}

impl Parameters for ShardedParameters {
    fn weights(&mut self, block: usize, next: Option<usize>) -> Result<Tensor, ModelError> {
        if let Some(on_device) = &mut self.on_device {
            return on_device.weights.get(block, next);
        }
        if let Some(weights) = self.held.as_ref().and_then(|held| held.weights(block)) {
            return Ok(weights);
        }
        let weights = self.gather(block)?;
        if let Some(held) = &mut self.held {
            held.keep(block, &weights);
        }
        Ok(weights)
    }

    fn gradient(&mut self, block: usize) -> Result<Gradient, ModelError> {
        if let Some(on_device) = &mut self.on_device {
            return on_device.gradients.memory(block);
        }
        Gradient::uninitialized(self.shard("provide the gradient", block)?.numel, Device::Cpu)
    }

    fn add_gradient(&mut self, block: usize, gradient: Gradient) -> Result<(), ModelError> {
        if let Some(on_device) = &mut self.on_device {
            return on_device.gradients.add(block);
        }
        match &mut self.held {
            Some(held) => Ok(held.add(block, gradient.flat)?),
            None => self.reduce(block, &gradient.flat),
        }
    }

    fn end_pass(&mut self) -> Result<(), ModelError> {
        if let Some(on_device) = &mut self.on_device {
            return on_device.gradients.end_pass();
        }
        if !self.passes_left.end() {
            return Ok(());
        }
        let sums = self.held.as_mut().map(HeldBlocks::take_gradients).unwrap_or_default();
        sums.into_iter().try_for_each(|(block, sum)| self.reduce(block, &sum))
    }
}
