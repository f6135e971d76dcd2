//! AdamW over shards with global gradient clipping. An update is skipped if the loss or the
//! gradient norm is not finite.

use std::rc::Rc;

use rljob_collective::{AdamW, CollectiveError, fused_adamw};
use rljob_crds::algorithm::OptimizerSpec;
use rljob_kernels::adamw::{self, Operands};
use tch::{Kind, Tensor};

use crate::checkpoint::OptimizerProgress;
use crate::fsdp::{DeviceVectors, Flat, Shard, ShardedParameters};
use crate::model::ModelError;
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

/// Outcome of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
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

    /// Updates the parameters and sets their gradients to zero. `loss` is the loss of the minibatch
    /// summed over ranks, so that all ranks skip the same updates.
    ///
    /// A collective. Clipping is PyTorch's `clip_grad_norm_`: gradients are scaled by clip ÷ (norm
    /// + 1e-6) if that is below 1.
    ///
    /// # Errors
    /// A collective or the kernel fails.
    pub fn update(
        &mut self,
        parameters: &mut ShardedParameters,
        learning_rate: f64,
        loss: f64,
    ) -> Result<Update, OptimizerError> {
        parameters.finish_gradients()?;
        let gradient_norm = self.gradient_norm(parameters)?;
        let skipped = !(loss.is_finite() && gradient_norm.is_finite());
        if skipped {
            self.progress.skipped_in_a_row += 1;
        } else {
            self.progress.skipped_in_a_row = 0;
            self.progress.updates += 1;
            let clip = self.spec.gradient_clipping;
            let scale = if clip > 0.0 { (clip / (gradient_norm + 1e-6)).min(1.0) } else { 1.0 };
            self.apply(parameters, learning_rate, scale)?;
        }
        parameters.end_update()?;
        Ok(Update { gradient_norm, skipped })
    }

    fn apply(
        &self,
        parameters: &ShardedParameters,
        learning_rate: f64,
        scale: f64,
    ) -> Result<(), OptimizerError> {
        if let (Some(vectors), Some(moments)) = (parameters.device_vectors(), &self.vectors) {
            return self.apply_on_device(vectors, moments, learning_rate, scale);
        }
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
                self.progress.updates,
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
        scale: f64,
    ) -> Result<(), OptimizerError> {
        let OptimizerSpec { beta1, beta2, weight_decay, epsilon, .. } = self.spec;
        let operands = Operands {
            weights: &vectors.master,
            gradient: &vectors.gradient,
            first_moment: &first_moment.whole,
            second_moment: &second_moment.whole,
            copy: vectors.copy.as_ref(),
        };
        let step = self.progress.updates;
        let settings =
            adamw::AdamW { learning_rate, beta1, beta2, weight_decay, epsilon, step, scale };
        Ok(adamw::update(&operands, &settings)?)
    }

    fn gradient_norm(&self, parameters: &ShardedParameters) -> Result<f64, OptimizerError> {
        let norm = |gradient: &Tensor| {
            gradient.f_norm_scalaropt_dtype(2, Kind::Double)?.f_double_value(&[])
        };
        let mut squares = 0.0;
        if let Some(vectors) = parameters.device_vectors() {
            squares = sum_of_squares(&vectors.gradient, NORM_ELEMENTS)?;
        } else {
            for shard in parameters.shards() {
                let norm = norm(&shard.gradient)?;
                squares += norm * norm;
            }
        }
        // Replicas have the same gradients.
        let counted = if self.ranks.is_of_first_replica() { squares } else { 0.0 };
        let [sum] = self
            .ranks
            .sum([counted])
            .map_err(|source| OptimizerError::Update { block: None, source })?;
        Ok(sum.sqrt())
    }
}

/// Zeros for a moment of blocks of these lengths, where the spec wants it.
fn flat(lengths: &[i64], ranks: &Ranks, spec: &OptimizerSpec) -> Result<Flat, ModelError> {
    if spec.offload {
        Flat::pinned(lengths, ranks.device())
    } else {
        Flat::zeros(lengths, Kind::Float, ranks.device())
    }
}

/// Sum of the squares of `flat` in fp32, `part` elements at a time, added in fp64. In fp64 alone,
/// libtorch makes a copy first, which takes five times as long. Waits for the device once.
fn sum_of_squares(flat: &Tensor, part: i64) -> Result<f64, tch::TchError> {
    let length = flat.numel() as i64;
    let sum = Tensor::f_zeros([], (Kind::Double, flat.device()))?;
    for start in (0..length).step_by(part as usize) {
        let norm = flat
            .f_narrow(0, start, part.min(length - start))?
            .f_norm_scalaropt_dtype(2, Kind::Float)?;
        let _ = sum.shallow_clone().f_add_(&norm.f_to_kind(Kind::Double)?.f_square()?)?;
    }
    sum.f_double_value(&[])
}

#[cfg(test)]
mod tests;
