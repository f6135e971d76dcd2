//! Records of steps and evaluations: completes the learners' metrics, then writes them to the
//! journal, the JSONL files and Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use rljob_crds::dataflow::LearnerCall;
use rljob_protocol::evaluation::PromptResult;
use rljob_protocol::metrics::{self, EvaluationMetrics, StepMetrics};
use rljob_protocol::version::Version;
use serde::Serialize;

use crate::clock::Clock;
use crate::core::Now;
use crate::data::Dataset;
use crate::files::Files;
use crate::persistence::journal::shared::{SharedJournal, SharedJournalError};
use crate::persistence::journal::{Event, Sample};
use crate::telemetry::Metrics;
use crate::timeline::{COORDINATOR, Timeline};

/// Number of steps whose rollout times are stored; exceeds the maximum of `rollout.maxStaleness`.
const STEPS_KEPT: u32 = 100;

/// The recorder of a run. Clones share their state.
#[derive(Clone)]
pub struct Recorder {
    /// Prometheus metrics.
    pub metrics: Metrics,
    /// JSONL files.
    pub files: Files,
    /// What the processes do in the step in progress.
    pub timeline: Timeline,
    journal: SharedJournal,
    clock: Clock,
    newest: Arc<Mutex<Newest>>,
}

/// The newest metrics, and the timings that the coordinator adds to those of the learners.
#[derive(Debug, Default)]
struct Newest {
    metrics: Option<StepMetrics>,
    evaluation: Option<EvaluationMetrics>,
    /// End of the previous step.
    step_ended: Option<Now>,
    /// Seconds of rollouts by step.
    rollout_seconds: BTreeMap<u32, f64>,
    /// Seconds of the weight sync before a step's rollouts and of its phases, by step.
    sync_seconds: BTreeMap<u32, Vec<(&'static str, f64)>>,
}

impl Recorder {
    /// A recorder that continues after `newest`, the last metrics in the journal.
    pub fn new(
        journal: SharedJournal,
        files: Files,
        metrics: Metrics,
        clock: Clock,
        newest: (Option<StepMetrics>, Option<EvaluationMetrics>),
    ) -> Self {
        let (step, evaluation) = newest;
        let newest = Newest { metrics: step, evaluation, ..Newest::default() };
        let (timeline, newest) = (Timeline::default(), Arc::new(Mutex::new(newest)));
        Self { metrics, files, timeline, journal, clock, newest }
    }

    /// Metrics of the newest step and of the newest evaluation.
    pub fn newest_metrics(&self) -> (Option<StepMetrics>, Option<EvaluationMetrics>) {
        let newest = self.newest();
        (newest.metrics.clone(), newest.evaluation.clone())
    }

    /// Adds to the audit trail. A failure is only logged.
    pub async fn event(&self, kind: &str, detail: serde_json::Value) {
        let event = Event { at: Timestamp::now(), kind: kind.to_owned(), detail };
        if let Err(error) = self.journal.call(move |journal| journal.put_event(&event)).await {
            tracing::warn!(error = %crate::error_line(&error), "failed to record an event");
        }
    }

    /// An engine holds `version`; `seconds` are those of its sync, as metrics of a step. The first
    /// engine ends the sync of the step.
    pub fn weights_arrived(&self, version: Version, seconds: Vec<(&'static str, f64)>) {
        let mut newest = self.newest();
        newest.sync_seconds.entry(version.step.saturating_add(1)).or_insert(seconds);
        newest.sync_seconds.retain(|step, _| *step > version.step);
    }

    /// The rollouts of `step` that began at `began` are done.
    pub fn rollouts_done(&self, step: u32, began: Option<Now>) {
        let mut newest = self.newest();
        newest.rollout_seconds.retain(|other, _| other.abs_diff(step) < STEPS_KEPT);
        if let Some(began) = began {
            let now = self.clock.now();
            newest.rollout_seconds.insert(step, now.saturating_sub(began).as_secs_f64());
            self.timeline.add(COORDINATOR, format!("rollouts of step {step}"), (began, now));
        }
    }

    /// Starts the clock of the first step.
    pub fn steps_begin(&self) {
        self.newest().step_ended.get_or_insert(self.clock.now());
    }

    /// Completes the learners' metrics of a step, records them once and appends them to
    /// `metrics.jsonl`, and the timeline to `traces.jsonl`. `positions` are those of a batch
    /// without samples of engines, in `data`.
    pub async fn record_step(
        &self,
        mut metrics: StepMetrics,
        data: Option<&Dataset>,
        positions: Range<u64>,
    ) -> Result<(), SharedJournalError> {
        let step = metrics.step;
        // A replayed step with pruned samples is not recorded: its first report is kept.
        let samples =
            self.journal.call(move |journal| journal.samples(step)).await.unwrap_or_default();
        let of_batch = self.journal.call(move |journal| {
            let (left_out, rejections) = (journal.left_out(step)?, journal.rejections(step)?);
            Ok((left_out, rejections, journal.skipped_positions(step)?, journal.inferred(step)?))
        });
        let ((dropped_groups, stale_samples), rejections, skipped_positions, inferred) =
            of_batch.await?;
        metrics.staleness = staleness_histogram(step, &samples);
        let scalars = &mut metrics.scalars;
        scalars.set(metrics::DROPPED_GROUPS, f64::from(dropped_groups));
        scalars.set_option(metrics::SKIPPED_ROWS, skipped_positions.map(f64::from));
        scalars.set(metrics::STALE_SAMPLES, f64::from(stale_samples));
        scalars.set(metrics::REJECTED_SAMPLES, f64::from(rejections.samples));
        scalars.set(metrics::REJECTED_GROUPS, f64::from(rejections.groups));
        if let Some(inferred) = inferred {
            scalars.set(LearnerCall::Reference.seconds(), inferred.seconds);
        }
        scalars.set_option(metrics::REWARD, mean(&samples, |sample| sample.reward));
        let rewards = samples.iter().map(|sample| (sample.position, sample.reward));
        scalars.set_option(metrics::EQUAL_REWARD_GROUPS, equal_reward_groups(rewards));
        scalars.set_option(
            metrics::COMPLETION_TOKENS,
            mean(&samples, |sample| sample.trained_tokens() as f64),
        );
        let turns = mean(&samples, |sample| sample.turn_rewards.len() as f64);
        scalars.set_option(metrics::TURNS, turns.filter(|turns| *turns > 1.0));
        for (name, mean) in reward_component_means(&samples) {
            scalars.set(format!("{}{name}", metrics::REWARD_COMPONENT_PREFIX), mean);
        }
        let sampled: BTreeSet<u64> = samples.iter().map(|sample| sample.position).collect();
        let positions = if sampled.is_empty() { positions.collect() } else { sampled };
        for (name, share) in data.map(|data| mix(data, &positions)).unwrap_or_default() {
            scalars.set(format!("{}{name}", metrics::MIXTURE_PREFIX), share);
        }
        self.add_timings(&mut metrics);
        let (step, now) = ((metrics.step, metrics.attempt), self.clock.now());
        let unix = Timestamp::now().as_duration().as_secs_f64();
        let trace = self.timeline.take(step, now, unix);
        let (files, recorded) = (self.files.clone(), metrics.clone());
        let new = self.journal.call(move |journal| {
            let new = journal.report_step(&recorded)?;
            if new {
                files.append_metrics(&recorded);
                files.append_trace(&trace);
            }
            Ok(new)
        });
        if new.await? {
            self.newest().metrics = Some(metrics);
        }
        Ok(())
    }

    fn add_timings(&self, metrics: &mut StepMetrics) {
        let now = self.clock.now();
        let mut newest = self.newest();
        let scalars = &mut metrics.scalars;
        let rollout_seconds = newest.rollout_seconds.remove(&metrics.step);
        scalars.set_option(metrics::ROLLOUT_SECONDS, rollout_seconds);
        for (name, seconds) in newest.sync_seconds.remove(&metrics.step).unwrap_or_default() {
            scalars.set(name, seconds);
        }
        let seconds = newest.step_ended.map_or_else(
            || scalars.get_or_zero(metrics::TRAIN_SECONDS),
            |ended| now.saturating_sub(ended).as_secs_f64(),
        );
        let speed =
            if seconds > 0.0 { scalars.get_or_zero(metrics::TOKENS) / seconds } else { 0.0 };
        scalars.set(metrics::TOKENS_PER_SECOND, speed);
        if let Some(ended) = newest.step_ended.replace(now) {
            self.timeline.add(COORDINATOR, format!("step {}", metrics.step), (ended, now));
        }
        self.metrics.step_done(metrics, seconds);
    }

    /// Records an evaluation once and appends it to `evaluations.jsonl`, and `samples` to
    /// `evaluation-samples.jsonl` and `results` to `evaluation-prompts.jsonl`.
    pub async fn record_evaluation<T: Serialize + Send + 'static>(
        &self,
        metrics: EvaluationMetrics,
        samples: Vec<T>,
        results: Vec<PromptResult>,
    ) -> Result<(), SharedJournalError> {
        let (files, recorded) = (self.files.clone(), metrics.clone());
        let done = self.journal.call(move |journal| {
            // Samples and results are written first: the journal does not hold them, and a crash
            // before the journal write repeats the evaluation.
            files.append_evaluation_samples(recorded.step, &samples);
            files.append_evaluation_prompts(recorded.step, &results);
            if journal.put_evaluation(&recorded)? {
                files.append_evaluation(&recorded);
            }
            Ok(())
        });
        done.await?;
        self.metrics.evaluated(&metrics);
        let mut newest = self.newest();
        newest.evaluation = Some(metrics.after(newest.evaluation.as_ref()));
        Ok(())
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock()
    }
}

/// `None` without samples.
fn mean(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().map(value).sum::<f64>() / samples.len() as f64)
}

/// Share of the groups of several samples whose samples have one reward, from the position and the
/// reward of each sample. `None` without such groups.
fn equal_reward_groups(samples: impl Iterator<Item = (u64, f64)>) -> Option<f64> {
    let mut groups = BTreeMap::<u64, Vec<f64>>::new();
    for (position, reward) in samples {
        groups.entry(position).or_default().push(reward);
    }
    groups.retain(|_, rewards| rewards.len() > 1);
    let is_equal = |rewards: &&Vec<f64>| {
        rewards.iter().zip(rewards.iter().skip(1)).all(|(one, next)| one.total_cmp(next).is_eq())
    };
    let equal = groups.values().filter(is_equal).count();
    (!groups.is_empty()).then(|| equal as f64 / groups.len() as f64)
}

/// Mean of each reward component by name, over the samples that have it.
fn reward_component_means(samples: &[Sample]) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::<String, (f64, u32)>::new();
    for (name, value) in samples.iter().flat_map(|sample| &sample.reward_components) {
        let (sum, count) = sums.entry(name.clone()).or_default();
        (*sum, *count) = (*sum + value, count.saturating_add(1));
    }
    sums.into_iter().map(|(name, (sum, count))| (name, sum / f64::from(count))).collect()
}

/// Share of each part of a mixture in the prompts at these positions; empty without a mixture.
fn mix(data: &Dataset, positions: &BTreeSet<u64>) -> BTreeMap<String, f64> {
    if positions.is_empty() {
        return BTreeMap::new();
    }
    let names = data.parts().iter().filter_map(|part| part.name());
    let mut counts: BTreeMap<&str, u32> = names.map(|name| (name, 0)).collect();
    for name in positions.iter().filter_map(|position| data.part_name(*position)) {
        let count = counts.entry(name).or_default();
        *count = count.saturating_add(1);
    }
    let share = |count: u32| f64::from(count) / positions.len() as f64;
    counts.into_iter().map(|(name, count)| (name.to_owned(), share(count))).collect()
}

/// Number of samples by staleness: steps done by the learners since the oldest weights that sampled
/// any of the sample's tokens.
fn staleness_histogram(step: u32, samples: &[Sample]) -> BTreeMap<u32, u32> {
    let mut histogram = BTreeMap::<u32, u32>::new();
    for oldest in samples.iter().filter_map(Sample::oldest) {
        let count = histogram.entry(step.saturating_sub(1).saturating_sub(oldest)).or_default();
        *count = count.saturating_add(1);
    }
    histogram
}

#[cfg(test)]
mod tests {
    use super::equal_reward_groups;

    #[test]
    fn groups_of_several_samples_with_one_reward_are_counted() {
        let of = |samples: &[(u64, f64)]| equal_reward_groups(samples.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(0, 1.0), (1, 1.0)]), None, "one sample per prompt");
        let two = [(3, 0.0), (4, 0.0), (3, 0.0), (4, 1.0), (4, 0.0), (9, 1.0)];
        assert_eq!(of(&two), Some(0.5));
        assert_eq!(of(&[(3, 0.5), (3, 0.5)]), Some(1.0));
    }
}
