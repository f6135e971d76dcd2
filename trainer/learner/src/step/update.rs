//! Optimizer updates of trained models, each after the passes over a minibatch.

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::metrics::{self, StepMetrics};

use super::Prepared;
use crate::models::TrainedModel;
use crate::optimizer::MAX_SKIPPED_IN_A_ROW;
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// Updates the model of a role with its gradients of a minibatch, whose loss on all ranks is
    /// `loss`. Returns the norm of the gradient, or none if the update is skipped.
    ///
    /// # Errors
    /// The optimizer fails, or has skipped [`MAX_SKIPPED_IN_A_ROW`] updates.
    pub(super) fn update(
        &mut self,
        role: ModelRole,
        (loss, learning_rate): (f64, f64),
        minibatch: u32,
        prepared: &Prepared<'_>,
        report: &mut StepMetrics,
    ) -> Result<Option<f64>, StepError> {
        let Some(trained) = self.models.trained_mut(role) else { return Ok(None) };
        let TrainedModel { parameters, optimizer, .. } = trained;
        let update = optimizer.update(parameters.trained_mut(), learning_rate, loss)?;
        if !update.skipped {
            return Ok(Some(update.gradient_norm));
        }
        report.scalars.add(metrics::SKIPPED, 1.0);
        tracing::warn!(
            step = report.step,
            minibatch,
            model = ?role,
            loss,
            gradient_norm = update.gradient_norm,
            "skipped an update because loss or gradient is not finite"
        );
        if optimizer.progress().skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW {
            return Err(StepError::NotFinite { samples: prepared.samples(minibatch) });
        }
        Ok(None)
    }
}
