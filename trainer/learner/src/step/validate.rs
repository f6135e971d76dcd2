//! The loss of data that is not trained on: forward passes only, of the same kind and over the same
//! ranks as in training.

use std::time::Instant;

use rljob_protocol::batch::RankBatch;
use rljob_protocol::learner::ValidationReport;
use tch::Kind;

use super::{StepError, Trainer};
use crate::algorithm::table::Table;
use crate::micro_batch::{check_place, micro_batches};

impl Trainer {
    /// The mean negative log-likelihood of the trained tokens of `data`, over all ranks; weights
    /// and moments stay. A collective: every rank calls it with its part of the same data. The
    /// report's attempt is the caller's to fill in.
    pub fn validate(&mut self, step: u32, data: &RankBatch) -> Result<ValidationReport, StepError> {
        let (started, header) = (Instant::now(), &data.header);
        check_place(header, step, self.ranks.rank(), self.ranks.world_size())?;
        let temperature = self.temperature();
        let mut sum = 0.0;
        for micro_batch in
            micro_batches(data, &Table::sft(&header.samples), self.model.config().vocab_size)?
        {
            crate::pulse::advance();
            let logprobs =
                self.model.logprobs(&mut self.parameters, &micro_batch.packed, temperature)?;
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
