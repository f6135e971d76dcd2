//! Updates of the critic, for algorithms that train one.

use std::time::Instant;

use rljob_crds::algorithm::ModelRole;
use rljob_crds::dataflow::LearnerCall;
use rljob_protocol::metrics::{self, StepMetrics};

use super::Prepared;
use super::sums::Sums;
use crate::heartbeat;
use crate::memory::Phase;
use crate::models::TrainedModel;
use crate::objective::Statistics;
use crate::optimizer::MAX_SKIPPED_IN_A_ROW;
use crate::schedule::learning_rate;
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// Ends the policy's part of a minibatch, which began at `began`. Then one optimizer update of
    /// the critic, if there is one; returns this rank's statistics, or none if the update is
    /// skipped.
    pub(super) fn update_critic(
        &mut self,
        minibatch: u32,
        prepared: &Prepared<'_>,
        report: &mut StepMetrics,
        began: Instant,
    ) -> Result<Statistics, StepError> {
        self.calls.end(LearnerCall::Policy, began);
        if self.models.trained_mut(ModelRole::Critic).is_none() {
            return Ok(Statistics::default());
        }
        let began = Instant::now();
        let statistics = self.train_critic(minibatch, prepared, report)?;
        self.calls.end(LearnerCall::Critic, began);
        Ok(statistics)
    }

    fn train_critic(
        &mut self,
        minibatch: u32,
        prepared: &Prepared<'_>,
        report: &mut StepMetrics,
    ) -> Result<Statistics, StepError> {
        let algorithm = self.spec.algorithm.resolve();
        let optimizer =
            algorithm.and_then(|algorithm| algorithm.critic_optimizer(&self.spec.optimizer));
        let optimizer = optimizer.as_ref().unwrap_or(&self.spec.optimizer);
        let learning_rate = learning_rate(optimizer, report.step, self.spec.training.steps);
        let mut sums = Sums::default();
        let objective = &self.objective;
        let Some(critic) = self.models.trained_mut(ModelRole::Critic) else {
            return Ok(sums.statistics);
        };
        let TrainedModel { model, parameters, optimizer } = critic;
        parameters.begin_minibatch(prepared.of(minibatch).count());
        for micro_batch in prepared.of(minibatch) {
            heartbeat::advance_after(self.ranks.device())?;
            self.phase = Phase::Training { tokens: micro_batch.packed.num_tokens() };
            let streams = &micro_batch.streams;
            let mut gradient = |values: &tch::Tensor| {
                let part = objective.value_loss(values, streams);
                let (loss, statistics) = (part.loss, part.statistics);
                let of_part = Sums { loss, statistics, ..Sums::default() };
                sums = std::mem::take(&mut sums).plus(of_part);
                part.gradient_N
            };
            model.values_forward_backward(parameters, &micro_batch.packed, &mut gradient)?;
        }
        self.phase = Phase::Update;
        let sums = sums.read();
        let [loss] = self.ranks.sum([sums.loss.value()])?;
        let update = optimizer.update(parameters.trained_mut(), learning_rate, loss)?;
        if !update.skipped {
            report.scalars.set(metrics::CRITIC_GRADIENT_NORM, update.gradient_norm);
            report.scalars.set(metrics::CRITIC_LEARNING_RATE, learning_rate);
            return Ok(sums.statistics);
        }
        report.scalars.add(metrics::SKIPPED, 1.0);
        tracing::warn!(
            minibatch,
            loss,
            gradient_norm = update.gradient_norm,
            "skipped an update of the critic because loss or gradient is not finite"
        );
        if optimizer.progress().skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW {
            return Err(StepError::NotFinite { samples: prepared.samples(minibatch) });
        }
        Ok(Statistics::default())
    }
}
