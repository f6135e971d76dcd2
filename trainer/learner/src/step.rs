//! Training step: advantages, signals, minibatches of micro-batches, updates, metrics. Independent
//! of the algorithm and the coordinator.
//!
//! ```text
//!  batch ──▶ objective: advantages and weights of all samples, the same on every rank
//!        ──▶ micro_batch: packed tokens and their streams
//!        ──▶ signals: forward passes that the objective asks for ─▶ objective: prepare
//!        ──▶ for each minibatch
//!              for each micro-batch: forward, objective's loss, backward ──▶ sum over ranks
//!              clip, AdamW; the same for the critic, if the algorithm trains one; a value head
//!              shares the passes of the policy
//!        ──▶ report: StepMetrics
//! ```
//! Losses are weighted sums over the minibatch's tokens on all ranks; there is no other averaging.

pub mod calls;
mod critic;
mod dropout;
mod entropy;
pub mod micro_batch;
mod policy;
mod report;
mod scores;
mod signals;
mod sums;
mod turns;
mod update;
mod validate;

use std::time::Instant;

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::batch::{BatchHeader, RankBatch};
use rljob_protocol::metrics::{self, StepMetrics};
use rljob_protocol::prompts::Prompts;

use crate::heartbeat;
use crate::memory::Phase;
use crate::models::TrainedModel;
use crate::objective::{Signal, StepAdvantages};
use crate::schedule::learning_rate;
use crate::trainer::{StepError, Trainer};
use micro_batch::{MicroBatch, check_groups, check_place, micro_batches};
use sums::{Sums, Updated};

/// A step's batch, ready for its minibatches.
struct Prepared<'a> {
    header: &'a BatchHeader,
    advantages: StepAdvantages,
    micro_batches: Vec<MicroBatch>,
    /// Whether the loss gets whole micro-batches instead of chunks.
    whole: bool,
}

impl Prepared<'_> {
    /// Samples of a minibatch, as indices into the step's table.
    fn samples(&self, minibatch: u32) -> Vec<usize> {
        let mine = |index: &usize| self.header.samples[*index].minibatch == minibatch;
        (0..self.header.samples.len()).filter(mine).collect()
    }

    /// Trainable tokens of a minibatch on all ranks.
    fn trainable_tokens(&self, minibatch: u32) -> u64 {
        let tokens = |index: usize| self.advantages.samples[index].trainable_tokens;
        self.samples(minibatch).into_iter().map(|index| u64::from(tokens(index))).sum()
    }

    /// This rank's micro-batches of a minibatch.
    fn of(&self, minibatch: u32) -> impl Iterator<Item = &MicroBatch> {
        self.micro_batches.iter().filter(move |micro_batch| micro_batch.minibatch == minibatch)
    }
}

impl Trainer {
    /// Trains on `step`'s batch. A collective: every rank calls it with its part of the same batch.
    ///
    /// # Errors
    /// The batch does not fit, a pass, collective or update fails, or the loss stays non-finite.
    pub fn step(&mut self, step: u32, batch: &RankBatch) -> Result<StepMetrics, StepError> {
        let started = Instant::now();
        let header = &batch.header;
        check_place(header, step, self.ranks.rank(), self.ranks.world_size())?;
        let advantages = self.objective.advantages(&header.samples);
        let vocab_size = self.models.policy.model.config().vocab_size;
        self.phase = Phase::Batch;
        let micro_batches = micro_batches(batch, &advantages, self.prompts(), vocab_size)?;
        check_groups(&micro_batches, self.objective.compared_samples())?;
        let micro_batches = self.on_device(micro_batches);
        let minibatches =
            header.samples.iter().map(|sample| sample.minibatch + 1).max().unwrap_or(0);
        let epochs = self.objective.epochs();
        let mut signals = self.objective.signals(minibatches * epochs);
        if batch.teacher_logprobs_T.is_some() {
            // The batch has those of a served teacher.
            signals.retain(|signal| *signal != Signal::Reference);
        }
        let whole = signals.contains(&Signal::Policy);
        let mut prepared = Prepared { header, advantages, micro_batches, whole };
        let began = Instant::now();
        let before = self.prepare(&signals, &mut prepared)?;
        self.spans.end("signals and advantages", began);
        let trainable_tokens = prepared.advantages.trainable_tokens();
        let computed = prepared.micro_batches.iter().map(|one| one.packed.num_tokens() as f64);
        let operations = self.operations(step, &signals, &prepared.micro_batches);
        let [tokens, computed, operations] =
            self.ranks.sum([batch.tokens_T.len() as f64, computed.sum(), operations])?;
        let rate = self.policy_learning_rate(step);
        let mut report = StepMetrics::with_scalars(
            step,
            [
                (metrics::LOSS, 0.0),
                (metrics::LEARNING_RATE, rate),
                (metrics::SKIPPED, 0.0),
                (metrics::GRADIENT_NORM, 0.0),
                (metrics::TOKENS, tokens),
                (metrics::COMPUTED_TOKENS, computed),
                (metrics::TRAINABLE_TOKENS, trainable_tokens as f64),
            ],
        );
        let mut sums = Sums::default();
        let rows = self.row_numbers(batch, &prepared.micro_batches)?;
        for epoch in 0..epochs {
            self.set_dropout((step, epoch), &rows, &mut prepared.micro_batches);
            for minibatch in 0..minibatches {
                let began = Instant::now();
                sums = sums.plus(self.minibatch(minibatch, &prepared, &mut report)?);
                self.spans.end(format!("minibatch {}", minibatch + 1), began);
            }
        }
        let mut sums = sums.divided_by(epochs);
        sums.statistics = sums.statistics.replaced_by(before);
        self.report(&mut report, &sums, prepared.advantages.groups)?;
        if self.trains_policy(step) && report.scalars.get_or_zero(metrics::SKIPPED) == 0.0 {
            let metric = |name: &str| report.scalars.get_or_zero(name);
            self.objective.end_step(header.samples.len(), &metric);
        }
        let seconds = started.elapsed().as_secs_f64();
        report.scalars.set(metrics::TRAIN_SECONDS, seconds);
        self.report_device(&mut report, operations / seconds)?;
        Ok(report)
    }

    fn trains_policy(&self, step: u32) -> bool {
        step > self.objective.critic_warmup_steps()
    }

    /// The schedule begins with the first step that updates the policy; 0 before.
    fn policy_learning_rate(&self, step: u32) -> f64 {
        let before = self.objective.critic_warmup_steps();
        let steps = self.spec.training.steps.saturating_sub(before);
        if self.trains_policy(step) {
            learning_rate(&self.spec.optimizer, step - before, steps)
        } else {
            0.0
        }
    }

    /// Floating-point operations of the step's passes over this rank's micro-batches. A pass
    /// without gradients has a third of those of one with them.
    fn operations(&self, step: u32, signals: &[Signal], micro_batches: &[MicroBatch]) -> f64 {
        let count =
            |is_wanted: fn(&&Signal) -> bool| signals.iter().filter(is_wanted).count() as f64;
        let epochs = f64::from(self.objective.epochs());
        let values = count(|signal| matches!(signal, Signal::Values));
        // A value head needs forward passes of the policy for values, and to be trained alone.
        let (warmup, of_head) =
            if self.models.has_value_head() { (2.0, values) } else { (1.0, 0.0) };
        let thirds = |role| match role {
            ModelRole::Policy => {
                let update = if self.trains_policy(step) { 3.0 } else { warmup };
                epochs * (update + count(|signal| matches!(signal, Signal::Policy)))
                    + count(|signal| !matches!(signal, Signal::Policy | Signal::Values))
                    + of_head
            }
            _ => 3.0 * epochs + values,
        };
        let of_model = |(role, trained): (ModelRole, &TrainedModel)| {
            let model = &trained.model;
            let of_pass = micro_batches.iter().map(|one| model.operations(&one.packed));
            thirds(role) / 3.0 * of_pass.sum::<f64>()
        };
        self.models.trained().map(of_model).sum()
    }

    /// Whether prompts that samples share are computed once.
    fn prompts(&self) -> Prompts {
        Prompts::of_gpus(u32::from(self.ranks.device().is_cuda()))
    }

    /// The micro-batches on the device of the models.
    fn on_device(&self, micro_batches: Vec<MicroBatch>) -> Vec<MicroBatch> {
        let (device, deterministic) = (self.ranks.device(), self.spec.training.deterministic);
        micro_batches.into_iter().map(|one| one.to_device(device, deterministic)).collect()
    }

    /// One optimizer update of each model that the step trains; returns this rank's sums, without
    /// those of the policy if its update is skipped.
    fn minibatch(
        &mut self,
        minibatch: u32,
        prepared: &Prepared<'_>,
        report: &mut StepMetrics,
    ) -> Result<Sums, StepError> {
        let began = Instant::now();
        let trains_policy = self.trains_policy(report.step);
        let (sums, of_head) = self.policy_passes(minibatch, prepared, trains_policy)?;
        tracing::debug!(step = report.step, minibatch, "update");
        heartbeat::advance_after(self.ranks.device())?;
        self.phase = Phase::Update;
        let Updated { mut sums, loss, norm } = if trains_policy {
            self.update_policy(sums, minibatch, prepared, report)?
        } else {
            let sums = sums.read();
            let [loss] = self.ranks.sum([sums.loss.value()])?;
            Updated { sums, loss, norm: None }
        };
        let critic = self.update_critic(of_head, minibatch, prepared, report, began)?;
        if trains_policy && norm.is_none() {
            return Ok(Sums { statistics: critic, ..Sums::default() });
        }
        sums.statistics = sums.statistics.plus(critic);
        let all = report.scalars.get_or_zero(metrics::TRAINABLE_TOKENS).max(1.0);
        let all = all * f64::from(self.objective.epochs());
        let tokens = prepared.trainable_tokens(minibatch) as f64;
        report.scalars.add(metrics::LOSS, loss * tokens / all);
        Ok(sums)
    }
}

#[cfg(test)]
mod tests;
