//! Dropout of the inputs of adapters in the passes of an update (`lora.dropout`).
//!
//! A mask belongs to the seed, the step, the pass over the batch, and the token of a sample,
//! whichever rank and micro-batch compute it: steps repeat bit for bit after a failure, and on
//! other numbers of ranks up to the order of sums. Samples of a prompt group have the same masks on
//! their prompt, which is computed once.

use rljob_protocol::batch::RankBatch;
use tch::Tensor;

use super::micro_batch::{BatchError, MicroBatch, token_numbers};
use crate::model::dropout::{Dropout, number};
use crate::trainer::Trainer;

impl Trainer {
    /// Probability of dropout; none if it is 0.
    fn dropout(&self) -> Option<f64> {
        self.spec.lora.as_ref().map(|lora| lora.dropout).filter(|probability| *probability > 0.0)
    }

    /// Numbers of the tokens of the rows of each micro-batch, for their masks; none without
    /// dropout.
    pub(super) fn row_numbers(
        &self,
        batch: &RankBatch,
        micro_batches: &[MicroBatch],
    ) -> Result<Vec<Tensor>, BatchError> {
        if self.dropout().is_none() {
            return Ok(Vec::new());
        }
        let numbers = token_numbers(batch)?;
        let rows = numbers.iter().zip(micro_batches);
        Ok(rows.map(|(numbers, micro_batch)| micro_batch.packed.of_rows(numbers)).collect())
    }

    /// Sets the masks of a pass over the batch of a step, with the numbers of
    /// [`Self::row_numbers`].
    pub(super) fn set_dropout(
        &self,
        (step, epoch): (u32, u32),
        rows: &[Tensor],
        micro_batches: &mut [MicroBatch],
    ) {
        let Some(probability) = self.dropout() else { return };
        let pass = number(&[self.spec.training.seed, u64::from(step), u64::from(epoch)]);
        for (micro_batch, rows) in micro_batches.iter_mut().zip(rows) {
            micro_batch.packed.set_dropout(Some(Dropout::new(probability, pass, rows)));
        }
    }
}
