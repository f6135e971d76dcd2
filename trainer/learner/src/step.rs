//! One training step: advantages, minibatches of micro-batches, updates, metrics. It decides nothing and knows no coordinator.
//!
//! ```text
//!  batch ──▶ advantages (the whole table, on every rank alike)
//!        ──▶ proximal log-probabilities, if there are several minibatches
//!        ──▶ for each minibatch: forward and backward over its micro-batches ──▶ sums over ranks ──▶ clip, AdamW
//!        ──▶ StepMetrics
//! ```
//! Losses are sums divided by the minibatch's trainable tokens over all ranks; nothing is averaged anywhere else.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::rc::Rc;
use std::time::Instant;

use rljob_collective::CollectiveError;
use rljob_crds::RLJobSpec;
use rljob_protocol::batch::{BatchHeader, RankBatch};
use rljob_protocol::status::StepMetrics;
use tch::{Kind, Tensor};

use crate::algorithm::grpo::{self, Clip, LossInput, LossSums};
use crate::algorithm::sft;
use crate::fsdp::ShardedParameters;
use crate::micro_batch::{BatchError, MicroBatch, check_place, micro_batches};
use crate::model::{Chunk, Model, ModelError};
use crate::optimizer::{MAX_SKIPPED_IN_A_ROW, Optimizer, OptimizerError};
use crate::ranks::Ranks;
use crate::schedule::learning_rate;

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
    #[error("loss or gradient was not finite in {MAX_SKIPPED_IN_A_ROW} updates in a row; the last one's samples are {samples:?} of the batch")]
    NotFinite {
        /// Indices into the step's table.
        samples: Vec<usize>,
    },
}

/// What is optimised.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Objective {
    Grpo(Clip),
    Sft,
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
    /// The job's spec.
    pub spec: RLJobSpec,
}

/// Sums over the micro-batches of a minibatch or step.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    loss: LossSums,
    entropy: f64,
}

impl Sums {
    fn plus(self, other: Self) -> Self {
        Self { loss: self.loss.plus(other.loss), entropy: self.entropy + other.entropy }
    }
}

impl Trainer {
    /// Trains on `step`'s batch. A collective: every rank calls it with its part of the same batch.
    pub fn step(&mut self, step: u32, batch: &RankBatch) -> Result<StepMetrics, StepError> {
        let started = Instant::now();
        let header = &batch.header;
        check_place(header, step, self.ranks.rank(), self.ranks.world_size())?;
        let rewards: Vec<(u32, f64)> = header.samples.iter().map(|sample| (sample.group, sample.reward)).collect();
        let micro_batches = micro_batches(batch, &grpo::advantages(&rewards), self.model.config().vocab_size)?;
        let minibatches = header.samples.iter().map(|sample| sample.minibatch + 1).max().unwrap_or(0);
        let proximal = if minibatches > 1 && self.objective() != Objective::Sft { Some(self.proximal(&micro_batches)?) } else { None };
        let trainable_tokens: u64 = header.samples.iter().map(|sample| u64::from(sample.trainable_tokens)).sum();
        let mut metrics = StepMetrics {
            step,
            learning_rate: learning_rate(&self.spec.optimizer, step, self.spec.training.steps),
            tokens: self.ranks.sum([batch.tokens_T.len() as f64])?[0] as u64,
            trainable_tokens,
            ..StepMetrics::default()
        };
        let mut sums = Sums::default();
        for minibatch in 0..minibatches {
            let proximal_N = proximal.as_ref().map(|(logprobs, _)| logprobs.as_slice());
            sums = sums.plus(self.minibatch(minibatch, header, &micro_batches, proximal_N, &mut metrics)?);
        }
        let before = proximal.map(|(_, before)| before);
        self.fill(&mut metrics, sums, before)?;
        metrics.train_seconds = started.elapsed().as_secs_f64();
        Ok(metrics)
    }

    fn objective(&self) -> Objective {
        let clip = |grpo: &rljob_crds::algorithm::GrpoSpec| Objective::Grpo(Clip { low: grpo.clip_low, high: grpo.clip_high });
        self.spec.algorithm.grpo.as_ref().map_or(Objective::Sft, clip)
    }

    /// Log-probabilities are of logits ÷ this, as the sampler's are.
    fn temperature(&self) -> f64 {
        if self.objective() == Objective::Sft { 1.0 } else { self.spec.rollout.temperature }
    }

    /// Each micro-batch's log-probabilities before the first update, and how far they are from the sampler's.
    fn proximal(&mut self, micro_batches: &[MicroBatch]) -> Result<(Vec<Tensor>, LossSums), StepError> {
        let (temperature, mut before) = (self.temperature(), LossSums::default());
        let mut logprobs = Vec::with_capacity(micro_batches.len());
        for micro_batch in micro_batches {
            let logprobs_N = self.model.logprobs(&mut self.parameters, &micro_batch.packed, temperature)?.logprobs_N;
            let input = LossInput {
                learner_logprobs_N: &logprobs_N,
                proximal_logprobs_N: None,
                sampler_logprobs_N: &micro_batch.sampler_logprobs_N,
                advantages_N: &micro_batch.advantages_N,
                trainable_tokens: 1,
            };
            before = before.plus(grpo::loss(&input, Clip { low: 0.0, high: 0.0 }).1);
            logprobs.push(logprobs_N);
        }
        Ok((logprobs, before))
    }

    /// One optimizer update; returns this rank's sums, those of a skipped update left out.
    fn minibatch(
        &mut self,
        minibatch: u32,
        header: &BatchHeader,
        micro_batches: &[MicroBatch],
        proximal_N: Option<&[Tensor]>,
        metrics: &mut StepMetrics,
    ) -> Result<Sums, StepError> {
        let mine = |index: &usize| header.samples[*index].minibatch == minibatch;
        let samples: Vec<usize> = (0..header.samples.len()).filter(mine).collect();
        let trainable_tokens = samples.iter().map(|&index| u64::from(header.samples[index].trainable_tokens)).sum::<u64>();
        let mut sums = Sums::default();
        for (index, micro_batch) in micro_batches.iter().enumerate().filter(|(_, micro_batch)| micro_batch.minibatch == minibatch) {
            sums = sums.plus(self.forward_backward(micro_batch, proximal_N.map(|logprobs| &logprobs[index]), trainable_tokens.max(1))?);
        }
        let [loss] = self.ranks.sum([sums.loss.loss])?;
        let update = self.optimizer.update(&mut self.parameters, metrics.learning_rate, loss)?;
        if update.skipped {
            metrics.skipped += 1;
            tracing::warn!(step = metrics.step, minibatch, loss, gradient_norm = update.gradient_norm, "skipped an update that is not finite");
            let give_up = self.optimizer.progress().skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW;
            return if give_up { Err(StepError::NotFinite { samples }) } else { Ok(Sums::default()) };
        }
        metrics.gradient_norm = update.gradient_norm;
        metrics.loss += loss * trainable_tokens as f64 / metrics.trainable_tokens.max(1) as f64;
        Ok(sums)
    }

    fn forward_backward(&mut self, micro_batch: &MicroBatch, proximal_N: Option<&Tensor>, trainable_tokens: u64) -> Result<Sums, StepError> {
        let (objective, temperature, mut sums) = (self.objective(), self.temperature(), Sums::default());
        let mut loss = |chunk: &Chunk| {
            let (gradient_N, loss) = chunk_loss(objective, chunk, micro_batch, proximal_N, trainable_tokens);
            sums = sums.plus(Sums { loss, entropy: chunk.entropy_N.sum(Kind::Double).double_value(&[]) });
            gradient_N
        };
        self.model.forward_backward(&mut self.parameters, &micro_batch.packed, temperature, &mut loss)?;
        Ok(sums)
    }

    /// Per-token metrics of the step over all ranks. `before` is the mismatch with the sampler before the first of several updates.
    fn fill(&self, metrics: &mut StepMetrics, sums: Sums, before: Option<LossSums>) -> Result<(), StepError> {
        let mismatch = before.unwrap_or(sums.loss);
        let totals = self.ranks.sum([sums.entropy, sums.loss.clipped, mismatch.kl, mismatch.mismatch])?;
        let [entropy, clipped, kl, difference] = totals.map(|total| finite(total / metrics.trainable_tokens.max(1) as f64));
        let largest = finite(self.ranks.max(mismatch.mismatch_max)?);
        metrics.entropy = entropy;
        if self.objective() != Objective::Sft {
            metrics.clip_fraction = Some(clipped);
            metrics.kl = Some(kl);
            metrics.mismatch_mean = Some(difference);
            metrics.mismatch_max = Some(largest);
        }
        Ok(())
    }
}

/// The derivative of the minibatch's loss by a chunk's log-probabilities, and its sums.
fn chunk_loss(objective: Objective, chunk: &Chunk, micro_batch: &MicroBatch, proximal_N: Option<&Tensor>, trainable_tokens: u64) -> (Tensor, LossSums) {
    let Objective::Grpo(clip) = objective else {
        let (gradient_N, loss) = sft::loss(&chunk.logprobs_N, trainable_tokens);
        return (gradient_N, LossSums { loss, ..LossSums::default() });
    };
    let proximal_N = proximal_N.map(|logprobs_N| chunk.of(logprobs_N));
    let input = LossInput {
        learner_logprobs_N: &chunk.logprobs_N,
        proximal_logprobs_N: proximal_N.as_ref(),
        sampler_logprobs_N: &chunk.of(&micro_batch.sampler_logprobs_N),
        advantages_N: &chunk.of(&micro_batch.advantages_N),
        trainable_tokens,
    };
    grpo::loss(&input, clip)
}

/// JSON has no infinity.
fn finite(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(-f64::MAX, f64::MAX) }
}

#[cfg(test)]
mod tests;
