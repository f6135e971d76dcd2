//! Passes of the policy over a minibatch, with its value head if it has one, and its update.

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::metrics::{self, StepMetrics};

use super::Prepared;
use super::critic::value_loss;
use super::entropy::policy_loss;
use super::micro_batch::MicroBatch;
use super::sums::{Sums, Updated};
use crate::heartbeat;
use crate::memory::Phase;
use crate::model::{Chunk, TokenGradient, ValueHead};
use crate::models::TrainedModel;
use crate::objective::Deferred;
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// The passes over a minibatch, with gradients if the policy is trained: sums of the policy,
    /// and of its value head, if the passes have trained one.
    pub(super) fn policy_passes(
        &mut self,
        minibatch: u32,
        prepared: &Prepared<'_>,
        trains_policy: bool,
    ) -> Result<(Sums, Option<Sums>), StepError> {
        if trains_policy {
            self.models.begin_minibatch(prepared.of(minibatch).count());
        }
        let has_head = trains_policy && self.models.has_value_head();
        let (mut sums, mut of_head) = (Sums::default(), has_head.then(Sums::default));
        for micro_batch in prepared.of(minibatch) {
            sums = sums.plus(if self.scores() {
                self.score_backward(micro_batch)?
            } else if trains_policy {
                self.forward_backward(micro_batch, prepared.whole, of_head.as_mut())?
            } else {
                self.forward(micro_batch)?.1
            });
        }
        Ok((sums, of_head))
    }

    /// A micro-batch without gradients: derivatives of its loss, and sums.
    pub(super) fn forward(
        &mut self,
        micro_batch: &MicroBatch,
    ) -> Result<(TokenGradient, Sums), StepError> {
        let MicroBatch { packed, streams, .. } = micro_batch;
        heartbeat::advance_after(self.ranks.device())?;
        self.phase = Phase::Logprobs { tokens: packed.num_tokens() };
        let policy = self.models.logprobs(ModelRole::Policy, packed, self.temperature())?;
        Ok(policy_loss(self.objective.as_ref(), &policy, streams))
    }

    /// A micro-batch with gradients. The sums of a value head are added to `of_head`.
    fn forward_backward(
        &mut self,
        micro_batch: &MicroBatch,
        whole: bool,
        of_head: Option<&mut Sums>,
    ) -> Result<Sums, StepError> {
        let (temperature, mut sums) = (self.temperature(), Sums::default());
        let MicroBatch { minibatch, packed, streams } = micro_batch;
        tracing::debug!(minibatch, "forward");
        heartbeat::advance_after(self.ranks.device())?;
        let mut whole_gradient = None;
        if whole {
            let (gradient, of_whole) = self.forward(micro_batch)?;
            // The pass with gradients adds the entropy.
            sums = Sums { entropy: Deferred::default(), ..of_whole };
            whole_gradient = Some(gradient);
        }
        self.phase = Phase::Training { tokens: packed.num_tokens() };
        let objective = self.objective.as_ref();
        let mut gradient = |chunk: &Chunk| {
            tracing::debug!(minibatch, tokens = ?chunk.range, "backward");
            let (gradient, of_chunk) = if let Some(gradient) = &whole_gradient {
                let entropy = Deferred::sum(&chunk.tokens.entropy_N);
                (chunk.of_gradient(gradient), Sums { entropy, ..Sums::default() })
            } else {
                policy_loss(objective, &chunk.tokens, &streams.narrow(&chunk.range))
            };
            sums = std::mem::take(&mut sums).plus(of_chunk);
            gradient
        };
        let (TrainedModel { model, parameters, .. }, head) = self.models.policy_and_value_head();
        let mut of_values = of_head.map(|sums| value_loss(objective, streams, sums));
        let head = head.zip(of_values.as_mut());
        let head = head.map(|(head, loss)| ValueHead { parameters: &mut head.parameters, loss });
        model.forward_backward(parameters, head, packed, temperature, &mut gradient)?;
        Ok(sums)
    }

    /// The optimizer update of the policy after passes with these sums.
    pub(super) fn update_policy(
        &mut self,
        sums: Sums,
        minibatch: u32,
        prepared: &Prepared<'_>,
        report: &mut StepMetrics,
    ) -> Result<Updated, StepError> {
        let sums_and_rate = (sums, report.scalars.get_or_zero(metrics::LEARNING_RATE));
        let updated = self.update(ModelRole::Policy, sums_and_rate, minibatch, prepared, report)?;
        if let Some(norm) = updated.norm {
            report.scalars.set(metrics::GRADIENT_NORM, norm);
        }
        Ok(updated)
    }
}
