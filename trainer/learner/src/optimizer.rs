//! AdamW over shards with global gradient clipping. An update is skipped if the loss or the
//! gradient norm is not finite.
//!
//! ```text
//!  CPUs   sum of the loss ─▶ sum of squares ─▶ scale ─▶ AdamW, block by block
//!  GPUs   squares ─▶ loss and squares in one all-reduce ─▶ scale ─▶ AdamW, all on the device
//!                                         └──────────▶ one copy to the host, with other sums
//! ```

mod on_device;

use std::rc::Rc;

use rljob_collective::{AdamW, CollectiveError, fused_adamw};
use rljob_crds::algorithm::OptimizerSpec;
use rljob_kernels::adamw::{self, Operands};
use tch::{Kind, Tensor};

use crate::checkpoint::OptimizerProgress;
use crate::fsdp::{DeviceVectors, Flat, Shard, ShardedParameters};
use crate::model::ModelError;
use crate::objective::Deferred;
use crate::ranks::Ranks;

/// Number of consecutive skipped updates after which the run fails.
pub const MAX_SKIPPED_IN_A_ROW: u32 = 5;
/// Elements of a gradient on a GPU whose norm is computed at a time.
const NORM_ELEMENTS: i64 = 1 << 26;

/// A failed update.
#[derive(Debug, thiserror::Error)]
pub enum OptimizerError {
    #[error("failed to update block {block:?}")]
    Update {
        /// The block, unless the norm over all blocks failed.
        block: Option<usize>,
        source: CollectiveError,
    },
    #[error(transparent)]
    Parameters(#[from] ModelError),
    #[error(transparent)]
    Kernel(#[from] rljob_kernels::KernelError),
    #[error("failed in libtorch")]
    Torch(#[from] tch::TchError),
}

/// An update that is made, or skipped, once its numbers are computed.
#[derive(Debug, Default)]
pub struct PendingUpdate {
    /// Loss of the minibatch over all ranks.
    loss: Deferred,
    /// Sum of the squares of the gradient over all ranks and parameters, before clipping.
    squares: Deferred,
}

impl PendingUpdate {
    /// Its numbers, to be read together with others.
    pub fn numbers_mut(&mut self) -> [&mut Deferred; 2] {
        [&mut self.loss, &mut self.squares]
    }
}

/// Outcome of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Loss of the minibatch over all ranks.
    pub loss: f64,
    /// L2 norm of the gradient over all ranks and parameters, before clipping.
    pub gradient_norm: f64,
    /// Whether it was skipped because loss or gradient was not finite.
    pub skipped: bool,
}

/// AdamW with the moments of this rank's shards.
#[derive(Debug)]
pub struct Optimizer {
    ranks: Rc<Ranks>,
    spec: OptimizerSpec,
    moments: Vec<[Tensor; 2]>,
    /// The moments of all blocks, of which `moments` are views, if they are on a GPU.
    vectors: Option<[Flat; 2]>,
    progress: OptimizerProgress,
}

impl Optimizer {
    /// Creates an optimizer of `parameters` before the first update.
    ///
    /// # Errors
    /// libtorch cannot allocate the moments.
    pub fn new(
        ranks: Rc<Ranks>,
        spec: OptimizerSpec,
        parameters: &ShardedParameters,
    ) -> Result<Self, OptimizerError> {
        let (progress, shards) = (OptimizerProgress::default(), parameters.shards());
        if ranks.device().is_cuda() {
            let lengths: Vec<i64> =
                shards.iter().map(|shard| shard.master.numel() as i64).collect();
            let vectors = [flat(&lengths, &ranks, &spec)?, flat(&lengths, &ranks, &spec)?];
            return Ok(Self::on_device(ranks, spec, vectors, progress));
        }
        let zeros = |shard: &Shard| shard.master.f_zeros_like();
        let moments = shards.iter().map(|shard| Ok([zeros(shard)?, zeros(shard)?]));
        let moments = moments.collect::<Result<_, tch::TchError>>()?;
        Ok(Self { ranks, spec, moments, vectors: None, progress })
    }

    /// Creates an optimizer that continues from a checkpoint: `moments` are this rank's shards of
    /// first and second moment, by block.
    ///
    /// # Errors
    /// libtorch cannot copy the moments to the device of the ranks.
    pub fn restored(
        ranks: Rc<Ranks>,
        spec: OptimizerSpec,
        moments: Vec<[Tensor; 2]>,
        progress: OptimizerProgress,
    ) -> Result<Self, OptimizerError> {
        let device = ranks.device();
        if !device.is_cuda() {
            return Ok(Self { ranks, spec, moments, vectors: None, progress });
        }
        let lengths: Vec<i64> = moments.iter().map(|[first, _]| first.numel() as i64).collect();
        let vectors = [flat(&lengths, &ranks, &spec)?, flat(&lengths, &ranks, &spec)?];
        for (index, moments) in moments.iter().enumerate() {
            for (vector, moment) in vectors.iter().zip(moments) {
                vector.blocks[index].shallow_clone().f_copy_(moment)?;
            }
        }
        Ok(Self::on_device(ranks, spec, vectors, progress))
    }

    fn on_device(
        ranks: Rc<Ranks>,
        spec: OptimizerSpec,
        vectors: [Flat; 2],
        progress: OptimizerProgress,
    ) -> Self {
        let [first, second] = &vectors;
        let views = first.blocks.iter().zip(&second.blocks);
        let views = views.map(|(first, second)| [first.shallow_clone(), second.shallow_clone()]);
        Self { ranks, spec, moments: views.collect(), vectors: Some(vectors), progress }
    }

    /// First and second moment of this rank's shards, by block.
    pub fn moments(&self) -> &[[Tensor; 2]] {
        &self.moments
    }

    /// Counters of updates.
    pub fn progress(&self) -> OptimizerProgress {
        self.progress
    }

    /// Updates the parameters and sets their gradients to zero, unless `loss`, this rank's part of
    /// the loss of the minibatch, or the gradient is not finite on any rank. On a GPU the numbers
    /// of the result are pending, so that the host waits once for them and others.
    ///
    /// A collective. Clipping is PyTorch's `clip_grad_norm_`: gradients are scaled by clip ÷ (norm
    /// + 1e-6) if that is below 1.
    ///
    /// # Errors
    /// A collective or the kernel fails.
    pub fn begin_update(
        &mut self,
        parameters: &mut ShardedParameters,
        learning_rate: f64,
        loss: &Deferred,
    ) -> Result<PendingUpdate, OptimizerError> {
        if let (Some(_), Some(_)) = (parameters.device_vectors(), &self.vectors) {
            return self.begin_on_device(parameters, learning_rate, loss);
        }
        let [loss] = self.ranks.sum([loss.value()]).map_err(sum_failed)?;
        parameters.finish_gradients()?;
        let squares = self.sum_of_squares(parameters)?;
        let norm = squares.sqrt();
        if is_finite(loss, norm) {
            let clip = self.spec.gradient_clipping;
            let scale = if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) } else { 1.0 };
            self.apply(parameters, learning_rate, scale)?;
        }
        parameters.end_update()?;
        Ok(PendingUpdate { loss: loss.into(), squares: squares.into() })
    }

    /// Sums, clips and updates on the device, without a wait of the host.
    fn begin_on_device(
        &self,
        parameters: &mut ShardedParameters,
        learning_rate: f64,
        loss: &Deferred,
    ) -> Result<PendingUpdate, OptimizerError> {
        parameters.finish_gradients()?;
        if let (Some(vectors), Some(moments)) = (parameters.device_vectors(), &self.vectors) {
            let squares = on_device::squares(&vectors.gradient, NORM_ELEMENTS)?;
            let sums = Tensor::f_stack(&[loss.on(self.ranks.device())?, squares], 0)?;
            self.ranks.sum_on_device(&sums).map_err(sum_failed)?;
            let [loss, squares] = [sums.f_get(0)?, sums.f_get(1)?];
            let scale = on_device::scale(&loss, &squares, self.spec.gradient_clipping)?;
            self.apply_on_device(vectors, moments, learning_rate, &scale)?;
            parameters.end_update()?;
            return Ok(PendingUpdate {
                loss: Deferred::Gpu(loss),
                squares: Deferred::Gpu(squares),
            });
        }
        Ok(PendingUpdate::default())
    }

    /// Counts an update whose numbers were read.
    pub fn end_update(&mut self, update: &PendingUpdate) -> Update {
        let (loss, gradient_norm) = (update.loss.value(), update.squares.value().sqrt());
        let skipped = !is_finite(loss, gradient_norm);
        if skipped {
            self.progress.skipped_in_a_row += 1;
        } else {
            self.progress.skipped_in_a_row = 0;
            self.progress.updates += 1;
        }
        Update { loss, gradient_norm, skipped }
    }

    fn apply(
        &self,
        parameters: &ShardedParameters,
        learning_rate: f64,
        scale: f64,
    ) -> Result<(), OptimizerError> {
        let OptimizerSpec { beta1, beta2, weight_decay, epsilon, .. } = self.spec;
        let settings = AdamW { learning_rate, beta1, beta2, weight_decay, epsilon };
        for (block, (shard, [exp_avg, exp_avg_sq])) in
            parameters.shards().iter().zip(&self.moments).enumerate()
        {
            if scale < 1.0 {
                let _ = shard.gradient.shallow_clone().f_mul_scalar_(scale)?;
            }
            fused_adamw(
                &shard.master,
                &shard.gradient,
                exp_avg,
                exp_avg_sq,
                self.progress.updates + 1,
                &settings,
            )
            .map_err(|source| OptimizerError::Update { block: Some(block), source })?;
        }
        Ok(())
    }

    /// One kernel for all blocks.
    fn apply_on_device(
        &self,
        vectors: &DeviceVectors,
        [first_moment, second_moment]: &[Flat; 2],
        learning_rate: f64,
        scale: &Tensor,
    ) -> Result<(), OptimizerError> {
        let OptimizerSpec { beta1, beta2, weight_decay, epsilon, .. } = self.spec;
        let operands = Operands {
            weights: &vectors.master.whole,
            gradient: &vectors.gradient,
            first_moment: &first_moment.whole,
            second_moment: &second_moment.whole,
            copy: vectors.copy.as_ref(),
            scale: Some(scale),
        };
        let step = self.progress.updates + 1;
        let settings =
            adamw::AdamW { learning_rate, beta1, beta2, weight_decay, epsilon, step, scale: 1.0 };
        Ok(adamw::update(&operands, &settings)?)
    }

    /// Sum of the squares of the gradient over all ranks, on the host.
    fn sum_of_squares(&self, parameters: &ShardedParameters) -> Result<f64, OptimizerError> {
        let mut squares = 0.0;
        for shard in parameters.shards() {
            let norm = shard.gradient.f_norm_scalaropt_dtype(2, Kind::Double)?;
            let norm = norm.f_double_value(&[])?;
            squares += norm * norm;
        }
        // Replicas have the same gradients.
        let counted = if self.ranks.is_of_first_replica() { squares } else { 0.0 };
        let [sum] = self.ranks.sum([counted]).map_err(sum_failed)?;
        Ok(sum)
    }
}

fn sum_failed(source: CollectiveError) -> OptimizerError {
    OptimizerError::Update { block: None, source }
}

/// Whether a minibatch with these numbers is an update.
fn is_finite(loss: f64, gradient_norm: f64) -> bool {
    loss.is_finite() && gradient_norm.is_finite()
}

/// Zeros for a moment of blocks of these lengths, where the spec wants it.
fn flat(lengths: &[i64], ranks: &Ranks, spec: &OptimizerSpec) -> Result<Flat, ModelError> {
    if spec.offload {
        Flat::pinned(lengths, ranks.device())
    } else {
        Flat::zeros(lengths, Kind::Float, ranks.device())
    }
}

#[cfg(test)]
mod tests;
