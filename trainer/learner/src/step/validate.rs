//! Validation: the objective's loss of data that is not trained on, by forward passes over the same
//! ranks.

use std::time::Instant;

use rljob_protocol::batch::RankBatch;
use rljob_protocol::learner::ValidationReport;
use rljob_protocol::metrics::{PAIR_ACCURACY, PAIR_MARGIN, TEACHER_KL};

use super::Prepared;
use super::micro_batch::{check_groups, check_place, micro_batches};
use super::sums::Sums;
use crate::memory::Phase;
use crate::objective::Statistic;
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// Loss of `data` over all ranks, and of pairs also the accuracy and the margin. A collective:
    /// every rank calls it with its part of the same data. The caller sets the report's attempt.
    ///
    /// # Errors
    /// The data does not fit, or a pass or collective fails.
    pub fn validate(&mut self, step: u32, data: &RankBatch) -> Result<ValidationReport, StepError> {
        let (started, header) = (Instant::now(), &data.header);
        check_place(header, step, self.ranks.rank(), self.ranks.world_size())?;
        let advantages = self.objective.advantages(&header.samples);
        let vocab_size = self.models.policy.model.config().vocab_size;
        self.phase = Phase::Batch;
        let micro_batches = micro_batches(data, &advantages, self.prompts(), vocab_size)?;
        check_groups(&micro_batches, self.objective.compared_samples())?;
        let micro_batches = self.on_device(micro_batches);
        let mut prepared = Prepared { header, advantages, micro_batches, whole: true };
        let signals = self.objective.signals(1);
        self.prepare(&signals, &mut prepared)?;
        let mut sums = Sums::default();
        for micro_batch in &prepared.micro_batches {
            let scores = self.scores();
            let measured =
                if scores { self.score(micro_batch)? } else { self.forward(micro_batch)?.1 };
            sums = sums.plus(measured);
        }
        let sums = sums.read();
        let of_pairs = [PAIR_ACCURACY, PAIR_MARGIN].map(Statistic::GroupMean);
        let [accuracy, margin] = of_pairs.map(|statistic| sums.statistics.get(statistic));
        let [loss, accuracy, margin] = self.ranks.sum([sums.loss.value(), accuracy, margin])?;
        let groups = prepared.advantages.groups.max(1) as f64;
        let compares = self.objective.compared_samples().is_some();
        // JSON has no infinity.
        let finite = |value: f64| if value.is_finite() { value } else { f64::MAX };
        Ok(ValidationReport {
            attempt: 0,
            loss: finite(loss),
            tokens: prepared.advantages.trainable_tokens(),
            sequences: header.samples.len() as u32,
            seconds: started.elapsed().as_secs_f64(),
            accuracy: compares.then(|| accuracy / groups),
            margin: compares.then(|| finite(margin / groups)),
            is_divergence: self.objective.statistics().contains(&Statistic::Mean(TEACHER_KL)),
        })
    }
}
