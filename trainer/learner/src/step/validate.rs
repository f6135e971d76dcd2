//! Validation: the loss of data that is not trained on, by forward passes over the same ranks.

use std::time::Instant;

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::batch::RankBatch;
use rljob_protocol::learner::ValidationReport;
use tch::Kind;

use super::micro_batch::{check_place, micro_batches};
use crate::memory::Phase;
use crate::objective::StepAdvantages;
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// Mean negative log-likelihood of the trained tokens of `data` over all ranks. A collective:
    /// every rank calls it with its part of the same data. The caller sets the report's attempt.
    ///
    /// # Errors
    /// The data does not fit, or a pass or collective fails.
    pub fn validate(&mut self, step: u32, data: &RankBatch) -> Result<ValidationReport, StepError> {
        let (started, header) = (Instant::now(), &data.header);
        check_place(header, step, self.ranks.rank(), self.ranks.world_size())?;
        let temperature = self.temperature();
        let weights = StepAdvantages::without_rewards(&header.samples);
        let vocab_size = self.models.policy.model.config().vocab_size;
        let mut sum = 0.0;
        self.phase = Phase::Batch;
        let micro_batches = micro_batches(data, &weights, self.prompts(), vocab_size)?;
        for micro_batch in self.on_device(micro_batches) {
            crate::heartbeat::advance_after(self.ranks.device())?;
            self.phase = Phase::Logprobs { tokens: micro_batch.packed.num_tokens() };
            let logprobs =
                self.models.logprobs(ModelRole::Policy, &micro_batch.packed, temperature)?;
            sum -= logprobs.logprobs_N.sum(Kind::Double).double_value(&[]);
        }
        let [sum] = self.ranks.sum([sum])?;
        let tokens: u64 =
            header.samples.iter().map(|sample| u64::from(sample.trainable_tokens)).sum();
        let loss = sum / tokens.max(1) as f64;
        // JSON has no infinity.
        let loss = if loss.is_finite() { loss } else { f64::MAX };
        Ok(ValidationReport {
            attempt: 0,
            loss,
            tokens,
            sequences: header.samples.len() as u32,
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}
