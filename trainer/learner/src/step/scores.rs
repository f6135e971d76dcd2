//! Micro-batches of a trained model with a scalar head, which scores sequences.

use super::micro_batch::MicroBatch;
use super::sums::Sums;
use crate::heartbeat;
use crate::memory::Phase;
use crate::model::Head;
use crate::models::TrainedModel;
use crate::objective::TokenLoss;
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// Whether the trained model scores sequences.
    pub(super) fn scores(&self) -> bool {
        self.models.policy.model.head() == Head::Scalar
    }

    /// A micro-batch without gradients.
    pub(super) fn score(&mut self, micro_batch: &MicroBatch) -> Result<Sums, StepError> {
        let MicroBatch { packed, streams, .. } = micro_batch;
        heartbeat::advance_after(self.ranks.device())?;
        self.phase = Phase::Logprobs { tokens: packed.num_tokens() };
        let TrainedModel { model, parameters, .. } = &mut self.models.policy;
        let scores = model.scores(parameters, packed)?;
        let TokenLoss { loss, statistics, .. } = self.objective.score_loss(&scores, streams);
        Ok(Sums { loss, statistics, ..Sums::default() })
    }

    /// A micro-batch with gradients.
    pub(super) fn score_backward(&mut self, micro_batch: &MicroBatch) -> Result<Sums, StepError> {
        let MicroBatch { minibatch, packed, streams } = micro_batch;
        heartbeat::advance_after(self.ranks.device())?;
        self.phase = Phase::Training { tokens: packed.num_tokens() };
        tracing::debug!(minibatch, "backward");
        let (objective, mut sums) = (&self.objective, Sums::default());
        let mut gradient = |scores: &tch::Tensor| {
            let part = objective.score_loss(scores, streams);
            sums = Sums { loss: part.loss, statistics: part.statistics, ..Sums::default() };
            part.gradient_N
        };
        let TrainedModel { model, parameters, .. } = &mut self.models.policy;
        model.scores_forward_backward(parameters, packed, &mut gradient)?;
        Ok(sums)
    }
}
