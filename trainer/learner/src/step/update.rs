//! Optimizer updates of trained models, each after the passes over a minibatch.

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::metrics::{self, StepMetrics};

use super::Prepared;
use super::sums::{Sums, Updated};
use crate::models::TrainedModel;
use crate::optimizer::{MAX_SKIPPED_IN_A_ROW, Update};
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// Updates the model of a role with its gradients of a minibatch, whose passes had these sums
    /// on this rank. Waits once for a GPU.
    ///
    /// # Errors
    /// The optimizer fails, or has skipped [`MAX_SKIPPED_IN_A_ROW`] updates.
    pub(super) fn update(
        &mut self,
        role: ModelRole,
        (sums, learning_rate): (Sums, f64),
        minibatch: u32,
        prepared: &Prepared<'_>,
        report: &mut StepMetrics,
    ) -> Result<Updated, StepError> {
        let Some(trained) = self.models.trained_mut(role) else {
            let sums = sums.read();
            let [loss] = self.ranks.sum([sums.loss.value()])?;
            return Ok(Updated { sums, loss, norm: None });
        };
        let TrainedModel { parameters, optimizer, .. } = trained;
        let mut pending =
            optimizer.begin_update(parameters.trained_mut(), learning_rate, &sums.loss)?;
        let sums = sums.read_with(pending.numbers_mut());
        let Update { loss, gradient_norm, skipped } = optimizer.end_update(&pending);
        if !skipped {
            return Ok(Updated { sums, loss, norm: Some(gradient_norm) });
        }
        report.scalars.add(metrics::SKIPPED, 1.0);
        tracing::warn!(
            step = report.step,
            minibatch,
            model = ?role,
            loss,
            gradient_norm,
            "skipped an update because loss or gradient is not finite"
        );
        if optimizer.progress().skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW {
            return Err(StepError::NotFinite { samples: prepared.samples(minibatch) });
        }
        Ok(Updated { sums, loss, norm: None })
    }
}
