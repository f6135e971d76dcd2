//! One training step: advantages, minibatches of micro-batches, updates, metrics; and the loss of
//! data that is not trained on (validate.rs). It decides nothing and knows no coordinator.
//!
//! ```text
//!  batch ──▶ table: advantages and weights (the whole table, on every rank alike) ──▶ micro-batches
//!        ──▶ prepare: reference and proximal log-probabilities where they are needed, KL off the rewards
//!        ──▶ for each minibatch: forward and backward over its micro-batches ──▶ sums over ranks ──▶ clip, AdamW
//!        ──▶ report: StepMetrics
//! ```
//! Losses are weighted sums over the minibatch's tokens on all ranks; nothing is averaged anywhere
//! else.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

mod prepare;
mod report;
mod validate;

use std::rc::Rc;
use std::time::Instant;

use rljob_collective::CollectiveError;
use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Algorithm;
use rljob_crds::grpo::GrpoSpec;
use rljob_protocol::batch::{BatchHeader, RankBatch};
use rljob_protocol::status::StepMetrics;
use tch::{Kind, Tensor};

use crate::algorithm::behavior::{self, Weights};
use crate::algorithm::grpo::{self, LossInput, LossSums};
use crate::algorithm::sft;
use crate::algorithm::table::Table;
use crate::fsdp::{FrozenParameters, ShardedParameters};
use crate::micro_batch::{BatchError, MicroBatch, check_place, micro_batches};
use crate::model::{Chunk, Model, ModelError};
use crate::optimizer::{MAX_SKIPPED_IN_A_ROW, Optimizer, OptimizerError};
use crate::pulse;
use crate::ranks::Ranks;
use crate::schedule::learning_rate;
use report::Sums;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The batch is not what was asked for.
    #[error("the batch cannot be trained on")]
    Batch(#[from] BatchError),
    /// A pass failed.
    #[error("a forward or backward pass failed")]
    Model(#[from] ModelError),
    /// An update failed.
    #[error("the optimizer failed")]
    Optimizer(#[from] OptimizerError),
    /// A sum over ranks failed.
    #[error("failed to sum over the ranks")]
    Collective(#[from] CollectiveError),
    /// The run has diverged, or the data is broken.
    #[error(
        "loss or gradient was not finite in {MAX_SKIPPED_IN_A_ROW} updates in a row; the last one's samples are {samples:?} of the batch"
    )]
    NotFinite {
        /// Indices into the step's table.
        samples: Vec<usize>,
    },
}

/// Model, weights and optimizer of one rank.
#[derive(Debug)]
pub struct Trainer {
    /// The other ranks.
    pub ranks: Rc<Ranks>,
    /// The model without weights.
    pub model: Model,
    /// The weights.
    pub parameters: ShardedParameters,
    /// The moments.
    pub optimizer: Optimizer,
    /// The weights before training, if the algorithm holds the learner near them.
    pub reference: Option<FrozenParameters>,
    /// The job's spec.
    pub spec: RLJobSpec,
}

/// A step's batch, ready for its minibatches.
struct Prepared<'a> {
    header: &'a BatchHeader,
    table: Table,
    micro_batches: Vec<MicroBatch>,
    /// None for `sft`.
    grpo: Option<GrpoSpec>,
}

impl Trainer {
    /// Trains on `step`'s batch. A collective: every rank calls it with its part of the same batch.
    pub fn step(&mut self, step: u32, batch: &RankBatch) -> Result<StepMetrics, StepError> {
        let started = Instant::now();
        let header = &batch.header;
        check_place(header, step, self.ranks.rank(), self.ranks.world_size())?;
        let grpo = self.spec.algorithm.resolve().and_then(Algorithm::grpo).cloned();
        let table = match &grpo {
            Some(grpo) => Table::grpo(grpo, &self.spec.rollout, &header.samples),
            None => Table::sft(&header.samples),
        };
        let micro_batches = micro_batches(batch, &table, self.model.config().vocab_size)?;
        let mut prepared = Prepared { header, table, micro_batches, grpo };
        let minibatches =
            header.samples.iter().map(|sample| sample.minibatch + 1).max().unwrap_or(0);
        let before = self.prepare(&mut prepared, minibatches)?;
        let mut metrics = StepMetrics {
            step,
            learning_rate: learning_rate(&self.spec.optimizer, step, self.spec.training.steps),
            tokens: self.ranks.sum([batch.tokens_T.len() as f64])?[0] as u64,
            trainable_tokens: prepared
                .table
                .entries
                .iter()
                .map(|entry| u64::from(entry.trainable_tokens))
                .sum(),
            ..StepMetrics::default()
        };
        let mut sums = Sums::default();
        for minibatch in 0..minibatches {
            sums = sums.plus(self.minibatch(minibatch, &prepared, &mut metrics)?);
        }
        self.report(&mut metrics, prepared.grpo.as_ref(), sums, before)?;
        metrics.train_seconds = started.elapsed().as_secs_f64();
        Ok(metrics)
    }

    /// Log-probabilities are of logits ÷ this, as the sampler's are.
    fn temperature(&self) -> f64 {
        if self.spec.algorithm.has_rollouts() { self.spec.rollout.temperature } else { 1.0 }
    }

    /// One optimizer update; returns this rank's sums, those of a skipped update left out.
    fn minibatch(
        &mut self,
        minibatch: u32,
        prepared: &Prepared<'_>,
        metrics: &mut StepMetrics,
    ) -> Result<Sums, StepError> {
        let mine = |index: &usize| prepared.header.samples[*index].minibatch == minibatch;
        let samples: Vec<usize> = (0..prepared.header.samples.len()).filter(mine).collect();
        let trainable_tokens: u64 = samples
            .iter()
            .map(|&index| u64::from(prepared.table.entries[index].trainable_tokens))
            .sum();
        let mut sums = Sums::default();
        for micro_batch in
            prepared.micro_batches.iter().filter(|micro_batch| micro_batch.minibatch == minibatch)
        {
            sums = sums.plus(self.forward_backward(prepared.grpo.as_ref(), micro_batch)?);
        }
        tracing::debug!(step = metrics.step, minibatch, "update");
        pulse::advance();
        let [loss] = self.ranks.sum([sums.loss.loss])?;
        let update = self.optimizer.update(&mut self.parameters, metrics.learning_rate, loss)?;
        if update.skipped {
            metrics.skipped += 1;
            tracing::warn!(
                step = metrics.step,
                minibatch,
                loss,
                gradient_norm = update.gradient_norm,
                "skipped an update that is not finite"
            );
            let give_up = self.optimizer.progress().skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW;
            return if give_up {
                Err(StepError::NotFinite { samples })
            } else {
                Ok(Sums::default())
            };
        }
        metrics.gradient_norm = update.gradient_norm;
        metrics.loss += loss * trainable_tokens as f64 / metrics.trainable_tokens.max(1) as f64;
        Ok(sums)
    }

    fn forward_backward(
        &mut self,
        grpo: Option<&GrpoSpec>,
        micro_batch: &MicroBatch,
    ) -> Result<Sums, StepError> {
        let (temperature, mut sums) = (self.temperature(), Sums::default());
        tracing::debug!(minibatch = micro_batch.minibatch, "forward");
        pulse::advance();
        let mut loss = |chunk: &Chunk| {
            tracing::debug!(minibatch = micro_batch.minibatch, tokens = ?chunk.range, "backward");
            let (gradient_N, loss) = chunk_loss(grpo, chunk, micro_batch);
            sums = sums
                .plus(Sums { loss, entropy: chunk.entropy_N.sum(Kind::Double).double_value(&[]) });
            gradient_N
        };
        self.model.forward_backward(
            &mut self.parameters,
            &micro_batch.packed,
            temperature,
            &mut loss,
        )?;
        Ok(sums)
    }
}

/// The derivative of the minibatch's loss by a chunk's log-probabilities, and its sums.
fn chunk_loss(
    grpo: Option<&GrpoSpec>,
    chunk: &Chunk,
    micro_batch: &MicroBatch,
) -> (Tensor, LossSums) {
    let (sampler, advantages, weights) = (
        chunk.of(&micro_batch.sampler_logprobs_N),
        chunk.of(&micro_batch.advantages_N),
        chunk.of(&micro_batch.weights_N),
    );
    let Some(grpo) = grpo else {
        let (gradient_N, loss) = sft::loss(&chunk.logprobs_N, &weights);
        return (gradient_N, LossSums { loss, ..LossSums::default() });
    };
    let behavior = grpo.behavior_weight.as_ref().map(|bounds| match &micro_batch.behavior {
        Some(known) => {
            Weights { weight_N: chunk.of(&known.weight_N), bounded_N: chunk.of(&known.bounded_N) }
        }
        // The proximal log-probabilities are those of this pass, and the bounds are held against
        // single tokens.
        None => behavior::weights(
            bounds,
            &chunk.logprobs_N,
            &sampler,
            &chunk.of(micro_batch.packed.sequence_N()),
        ),
    });
    let part =
        |logprobs_N: &Option<Tensor>| logprobs_N.as_ref().map(|logprobs_N| chunk.of(logprobs_N));
    let (proximal, reference) =
        (part(&micro_batch.proximal_logprobs_N), part(&micro_batch.reference_logprobs_N));
    let input = LossInput {
        learner_logprobs_N: &chunk.logprobs_N,
        proximal_logprobs_N: proximal.as_ref(),
        sampler_logprobs_N: &sampler,
        reference_logprobs_N: reference.as_ref(),
        advantages_N: &advantages,
        weights_N: &weights,
        behavior: behavior.as_ref(),
    };
    grpo::loss(grpo, &input)
}

#[cfg(test)]
mod tests;
