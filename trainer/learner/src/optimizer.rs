//! AdamW over shards with global gradient clipping. An update is skipped if the loss or the
//! gradient norm is not finite.

use std::rc::Rc;

use rljob_collective::{AdamW, CollectiveError, fused_adamw};
use rljob_crds::algorithm::OptimizerSpec;
use tch::{Kind, Tensor};

use crate::checkpoint::OptimizerProgress;
use crate::fsdp::ShardedParameters;
use crate::ranks::Ranks;

/// Number of consecutive skipped updates after which the run fails.
pub const MAX_SKIPPED_IN_A_ROW: u32 = 5;

/// A failed update.
#[derive(Debug, thiserror::Error)]
pub enum OptimizerError {
    #[error("failed to update block {block:?}")]
    Update {
        /// The block, unless the norm over all blocks failed.
        block: Option<usize>,
        source: CollectiveError,
    },
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
    progress: OptimizerProgress,
}

impl Optimizer {
    /// Creates an optimizer of `parameters` before the first update.
    pub fn new(ranks: Rc<Ranks>, spec: OptimizerSpec, parameters: &ShardedParameters) -> Self {
        let moments = parameters
            .shards()
            .iter()
            .map(|shard| [shard.master.zeros_like(), shard.master.zeros_like()])
            .collect();
        Self { ranks, spec, moments, progress: OptimizerProgress::default() }
    }

    /// Creates an optimizer that continues from a checkpoint: `moments` are this rank's shards of
    /// first and second moment, by block.
    pub fn restored(
        ranks: Rc<Ranks>,
        spec: OptimizerSpec,
        moments: Vec<[Tensor; 2]>,
        progress: OptimizerProgress,
    ) -> Self {
        Self { ranks, spec, moments, progress }
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
        parameters.zero_gradients();
        Ok(Update { gradient_norm, skipped })
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
                self.progress.updates,
                &settings,
            )
            .map_err(|source| OptimizerError::Update { block: Some(block), source })?;
        }
        Ok(())
    }

    fn gradient_norm(&self, parameters: &ShardedParameters) -> Result<f64, OptimizerError> {
        let mut squares = 0.0;
        for shard in parameters.shards() {
            let norm =
                shard.gradient.f_norm_scalaropt_dtype(2, Kind::Double)?.f_double_value(&[])?;
            squares += norm * norm;
        }
        let [sum] = self
            .ranks
            .sum([squares])
            .map_err(|source| OptimizerError::Update { block: None, source })?;
        Ok(sum.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::Optimizer;
    use crate::checkpoint::OptimizerProgress;
    use crate::fsdp::ShardedParameters;
    use crate::model::Parameters;
    use crate::ranks::Ranks;
    use rljob_crds::algorithm::OptimizerSpec;
    use tch::{Kind, Tensor};

    fn setup() -> (ShardedParameters, Optimizer) {
        let parameters = ShardedParameters::new(
            Ranks::alone(),
            Kind::Float,
            &[2],
            vec![Tensor::from_slice(&[1f32, -1.])],
        );
        let spec =
            OptimizerSpec { weight_decay: 0.0, gradient_clipping: 1.0, ..OptimizerSpec::default() };
        let optimizer = Optimizer::new(Ranks::alone(), spec, &parameters);
        (parameters, optimizer)
    }

    fn floats(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn the_norm_is_that_before_clipping_and_the_gradient_is_reset() {
        let (mut parameters, mut optimizer) = setup();
        parameters.add_gradient(0, &Tensor::from_slice(&[3f32, 4.])).unwrap();
        let update = optimizer.update(&mut parameters, 0.5, 1.0).unwrap();
        assert_eq!((update.gradient_norm, update.skipped), (5.0, false));
        // The first AdamW update moves each element by the learning rate; the first moment is a
        // tenth of the clipped gradient.
        let close = |tensor: &Tensor, expected: [f32; 2]| {
            assert!(
                tensor.allclose(&Tensor::from_slice(&expected), 1e-6, 0.0, false),
                "{:?}",
                floats(tensor)
            );
        };
        close(&parameters.shards()[0].master, [0.5, -1.5]);
        close(&optimizer.moments()[0][0], [0.06, 0.08]);
        assert_eq!(floats(&parameters.shards()[0].gradient), [0.0, 0.0]);
    }

    #[test]
    fn updates_with_non_finite_numbers_are_skipped_and_counted_until_one_succeeds() {
        let (mut parameters, mut optimizer) = setup();
        parameters.add_gradient(0, &Tensor::from_slice(&[f32::NAN, 0.])).unwrap();
        assert!(optimizer.update(&mut parameters, 0.5, 1.0).unwrap().skipped);
        parameters.add_gradient(0, &Tensor::from_slice(&[1f32, 0.])).unwrap();
        assert!(optimizer.update(&mut parameters, 0.5, f64::INFINITY).unwrap().skipped);
        assert_eq!(floats(&parameters.shards()[0].master), [1.0, -1.0]);
        assert_eq!(optimizer.progress(), OptimizerProgress { updates: 0, skipped_in_a_row: 2 });
        parameters.add_gradient(0, &Tensor::from_slice(&[1f32, 0.])).unwrap();
        assert!(!optimizer.update(&mut parameters, 0.5, 1.0).unwrap().skipped);
        assert_eq!(optimizer.progress(), OptimizerProgress { updates: 1, skipped_in_a_row: 0 });
    }
}
