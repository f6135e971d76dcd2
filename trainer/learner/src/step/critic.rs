//! Updates of the critic, for algorithms that train one.

use std::time::Instant;

use rljob_crds::algorithm::ModelRole;
use rljob_crds::dataflow::LearnerCall;
use rljob_protocol::metrics::{self, StepMetrics};
use tch::Tensor;

use super::Prepared;
use super::sums::{Sums, Updated};
use crate::heartbeat;
use crate::memory::Phase;
use crate::objective::{Objective, Statistics, TokenStreams};
use crate::schedule::learning_rate;
use crate::trainer::{StepError, Trainer};

/// The loss of values of a micro-batch as passes call it; adds its sums to `sums`.
pub(super) fn value_loss<'a>(
    objective: &'a dyn Objective,
    streams: &'a TokenStreams,
    sums: &'a mut Sums,
) -> impl FnMut(&Tensor) -> Tensor + use<'a> {
    move |values| {
        let part = objective.value_loss(values, streams);
        let (loss, statistics) = (part.loss, part.statistics);
        *sums = std::mem::take(sums).plus(Sums { loss, statistics, ..Sums::default() });
        part.gradient_N
    }
}

impl Trainer {
    /// Ends the policy's part of a minibatch, which began at `began`. Then one optimizer update of
    /// the critic, if there is one; returns this rank's statistics, or none if the update is
    /// skipped. `of_head` has the sums of a value head if the passes of the policy have trained it;
    /// the update of a value head is in the policy's part.
    pub(super) fn update_critic(
        &mut self,
        of_head: Option<Sums>,
        minibatch: u32,
        prepared: &Prepared<'_>,
        report: &mut StepMetrics,
        began: Instant,
    ) -> Result<Statistics, StepError> {
        let mut call = (LearnerCall::Policy, began);
        if !self.models.has_value_head() {
            self.calls.end(LearnerCall::Policy, began);
            call = (LearnerCall::Critic, Instant::now());
        }
        if self.models.trained_mut(ModelRole::Critic).is_none() {
            return Ok(Statistics::default());
        }
        let sums = match of_head {
            Some(sums) => sums,
            None => self.critic_passes(minibatch, prepared)?,
        };
        let statistics = self.end_critic(sums, minibatch, prepared, report)?;
        self.calls.end(call.0, call.1);
        Ok(statistics)
    }

    /// Passes of the critic with gradients.
    fn critic_passes(
        &mut self,
        minibatch: u32,
        prepared: &Prepared<'_>,
    ) -> Result<Sums, StepError> {
        if let Some(critic) = self.models.trained_mut(ModelRole::Critic) {
            critic.parameters.begin_minibatch(prepared.of(minibatch).count());
        }
        let mut sums = Sums::default();
        for micro_batch in prepared.of(minibatch) {
            heartbeat::advance_after(self.ranks.device())?;
            self.phase = Phase::Training { tokens: micro_batch.packed.num_tokens() };
            let mut loss = value_loss(self.objective.as_ref(), &micro_batch.streams, &mut sums);
            self.models.values_forward_backward(&micro_batch.packed, &mut loss)?;
        }
        Ok(sums)
    }

    /// The optimizer update after passes of the critic with these sums.
    fn end_critic(
        &mut self,
        sums: Sums,
        minibatch: u32,
        prepared: &Prepared<'_>,
        report: &mut StepMetrics,
    ) -> Result<Statistics, StepError> {
        let algorithm = self.spec.algorithm.resolve();
        let optimizer =
            algorithm.and_then(|algorithm| algorithm.critic_optimizer(&self.spec.optimizer));
        let optimizer = optimizer.as_ref().unwrap_or(&self.spec.optimizer);
        let learning_rate = learning_rate(optimizer, report.step, self.spec.training.steps);
        self.phase = Phase::Update;
        let sums_and_rate = (sums, learning_rate);
        let updated = self.update(ModelRole::Critic, sums_and_rate, minibatch, prepared, report)?;
        let Updated { sums, norm: Some(norm), .. } = updated else {
            return Ok(Statistics::default());
        };
        report.scalars.set(metrics::CRITIC_GRADIENT_NORM, norm);
        report.scalars.set(metrics::CRITIC_LEARNING_RATE, learning_rate);
        Ok(sums.statistics)
    }
}
