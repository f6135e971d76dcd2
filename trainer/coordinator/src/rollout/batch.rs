//! Batches of a schedule in the journal, and samples that are too old for one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Schedule;
use super::ledger::Batch;
use crate::persistence::journal::{DataPosition, FixedBatch, Pending, Rejections};
use crate::work_error::WorkError;

impl Schedule<'_> {
    /// Removes the samples of a group that are too old for its step and returns the others.
    pub(super) async fn discard_stale(
        &mut self,
        position: u64,
        step: u32,
    ) -> Result<Vec<Pending>, WorkError> {
        let rule = self.rule;
        let journal = &self.rollouts.journal;
        let (stale, have) = journal
            .call(move |journal| {
                journal.discard_if(position, |sample| rule.rejects(step, sample.oldest))
            })
            .await?;
        self.stale = self.stale.saturating_add(stale);
        self.rollouts.recorder.metrics.stale_samples.inc_by(stale.into());
        tracing::info!(position, step, samples = stale, "samples are too old and made again");
        Ok(have)
    }

    /// Fixes the batch of a step.
    pub(super) async fn fix(&mut self, batch: Batch) -> Result<(), WorkError> {
        let Batch { step, positions, dropped, empty, skipped, capped, next_position, passed_over } =
            batch;
        let data = DataPosition { next_position, passed_over };
        let finished = std::mem::take(&mut self.finished).into_iter();
        let (finished, later): (BTreeMap<_, _>, BTreeMap<_, _>) =
            finished.partition(|(position, _)| data.has_used(*position));
        self.finished = later;
        let began = finished.values().filter_map(|(began, _)| *began).min();
        let samples = finished.into_values().map(|(_, rejected)| rejected).sum();
        if capped {
            self.report_capped(step, dropped).await;
        }
        self.curriculum.judge(self.ledger.judged());
        let changes = self.curriculum.take_changes(|position| data.has_used(position));
        let fixed = FixedBatch {
            step,
            positions,
            next_position: data.next_position,
            passed_over: data.passed_over,
            dropped_groups: dropped,
            stale_samples: std::mem::take(&mut self.stale),
            rejections: Rejections { samples, groups: empty },
            pass_rates: changes.measured,
            superseded_pass_rates: changes.superseded,
        };
        let (files, input) =
            (self.rollouts.recorder.files.clone(), Arc::clone(&self.rollouts.input));
        let written = self.rollouts.journal.call(move |journal| {
            journal.fix_batch(&fixed)?;
            input.train.as_ref().map_or(Ok(()), |train| files.append_samples(journal, train))
        });
        written.await?;
        let metrics = &self.rollouts.recorder.metrics;
        metrics.dropped_groups.inc_by(dropped.into());
        metrics.skipped_rows.inc_by(skipped.into());
        self.rollouts.recorder.rollouts_done(step, began);
        Ok(self.rollouts.run.change(|run, _| run.batch_fixed(step)).await?)
    }

    async fn report_capped(&self, step: u32, dropped: u32) {
        tracing::warn!(
            step,
            dropped,
            "too many groups with equal rewards: the batch has some of them, since \
                rollout.dynamicSampling.maxAttempts is reached"
        );
        let detail = serde_json::json!({"step": step, "dropped": dropped});
        self.rollouts.recorder.event("DynamicSamplingCapped", detail).await;
    }
}
