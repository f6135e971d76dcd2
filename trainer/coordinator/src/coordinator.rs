//! The process's shared state: the pure run behind a lock, the journal, the engines, the files.
//! Everything that happens goes through [`Coordinator::change`].
//!
//! ```text
//!  server ─┐                         ┌─▶ journal (before anybody is told)
//!  driver ─┼─▶ change(|run| …) ──────┤
//!  sync   ─┘                         └─▶ changed ─▶ driver, sync, held requests
//! ```

use std::collections::BTreeMap;
use std::sync::{Mutex as SyncMutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use rljob_crds::RunConfig;
use rljob_protocol::status::{CoordinatorStatus, EvaluationMetrics, StepMetrics};
use rljob_protocol::version::Version;
use rljob_storage::RunStore;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::batches::Batches;
use crate::clock::Clock;
use crate::core::record::KEY;
use crate::core::{Now, Record, Run};
use crate::engines::Fleet;
use crate::evaluation::Shown;
use crate::files::Files;
use crate::journal::Event;
use crate::rollout::staleness;
use crate::store::{Store, StoreError};
use crate::telemetry::Metrics;

/// Sampling runs ahead of training by fewer steps.
const STEPS_REMEMBERED: u32 = 100;

/// The shared state.
pub struct Coordinator {
    /// The run configuration.
    pub config: RunConfig,
    /// Where the run is kept.
    pub run_store: RunStore,
    /// Drawn anew by every process.
    pub incarnation: u64,
    /// Time since the process started.
    pub clock: Clock,
    /// The journal.
    pub store: Store,
    /// The engines.
    pub fleet: Fleet,
    /// For Prometheus.
    pub metrics: Metrics,
    /// The batch of the current step.
    pub batches: Batches,
    /// The JSONL files.
    pub files: Files,
    /// Ends everything.
    pub stop: CancellationToken,
    run: Mutex<Guarded>,
    changed: watch::Sender<()>,
    newest: SyncMutex<Newest>,
}

struct Guarded {
    run: Run,
    /// What the journal holds.
    written: Record,
}

/// The newest numbers, and those that the coordinator adds to the learners' own.
#[derive(Debug, Default)]
struct Newest {
    metrics: Option<StepMetrics>,
    evaluation: Option<EvaluationMetrics>,
    /// When the step before ended.
    step_ended: Option<Now>,
    /// By step: seconds of its rollouts, seconds of the sync before them.
    rollout_seconds: BTreeMap<u32, f64>,
    sync_seconds: BTreeMap<u32, f64>,
}

/// What [`Coordinator::new`] puts together.
pub struct Parts {
    /// The run configuration.
    pub config: RunConfig,
    /// Where the run is kept.
    pub run_store: RunStore,
    /// Drawn anew by every process.
    pub incarnation: u64,
    /// The clock that `run` was given the time of.
    pub clock: Clock,
    /// The journal.
    pub store: Store,
    /// The engines.
    pub fleet: Fleet,
    /// The JSONL files.
    pub files: Files,
    /// The run.
    pub run: Run,
    /// Newest step's numbers.
    pub newest_metrics: Option<StepMetrics>,
    /// Newest evaluation's numbers.
    pub newest_evaluation: Option<EvaluationMetrics>,
    /// For Prometheus.
    pub metrics: Metrics,
}

impl Coordinator {
    /// The shared state of a process.
    pub fn new(parts: Parts) -> Self {
        let Parts {
            config,
            run_store,
            incarnation,
            clock,
            store,
            fleet,
            files,
            run,
            newest_metrics,
            newest_evaluation,
            metrics,
        } = parts;
        let written = run.record().clone();
        Self {
            config,
            run_store,
            incarnation,
            clock,
            store,
            fleet,
            metrics,
            batches: Batches::default(),
            files,
            stop: CancellationToken::new(),
            run: Mutex::new(Guarded { run, written }),
            changed: watch::channel(()).0,
            newest: SyncMutex::new(Newest {
                metrics: newest_metrics,
                evaluation: newest_evaluation,
                ..Newest::default()
            }),
        }
    }

    /// Changes the run. What must be durable is in the journal when this returns; whoever waits for
    /// a change is told if there was one.
    pub async fn change<T>(
        &self,
        change: impl FnOnce(&mut Run, Now) -> T,
    ) -> Result<T, StoreError> {
        let mut guarded = self.run.lock().await;
        let before = guarded.run.outline();
        let result = change(&mut guarded.run, self.clock.now());
        if *guarded.run.record() != guarded.written {
            let record = guarded.run.record().clone();
            let json = serde_json::to_value(&record).map_err(|error| {
                crate::journal::JournalError::Malformed {
                    what: "state.value",
                    source: error.into(),
                }
            })?;
            let event =
                Event { at: Timestamp::now(), kind: "RunChanged".to_owned(), detail: json.clone() };
            let began = self.clock.now();
            self.store
                .call(move |journal| {
                    journal.put_state(KEY, &json)?;
                    journal.put_event(&event)
                })
                .await?;
            tracing::info!(
                stage = record.stage.name(),
                attempt = record.attempt,
                restarts = record.restarts,
                "the run changed"
            );
            guarded.written = record;
            // Meanwhile nobody was heard: a bucket's server may have been away for minutes.
            guarded.run.heard_nobody_for(self.clock.now().saturating_sub(began));
        }
        let changed = guarded.run.outline() != before;
        drop(guarded);
        if changed {
            self.changed.send_replace(());
        }
        Ok(result)
    }

    /// Looks at the run.
    pub async fn read<T>(&self, read: impl FnOnce(&Run) -> T) -> T {
        read(&self.run.lock().await.run)
    }

    /// Told after every change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The status, whole.
    pub async fn status(&self) -> CoordinatorStatus {
        let (metrics, evaluation) = {
            let newest = self.newest();
            (newest.metrics.clone(), newest.evaluation.clone())
        };
        let now = self.clock.now();
        self.read(|run| {
            let current = run.record().published.as_ref().map(|published| published.version);
            run.status(metrics, evaluation, self.fleet.states(current), now)
        })
        .await
    }

    /// Adds to the audit trail; a failure is logged, since nothing depends on it.
    pub async fn event(&self, kind: &str, detail: serde_json::Value) {
        let event = Event { at: Timestamp::now(), kind: kind.to_owned(), detail };
        if let Err(error) = self.store.call(move |journal| journal.put_event(&event)).await {
            tracing::warn!(error = %crate::error_line(&error), "an event was not recorded");
        }
    }

    /// An engine holds `version`: the first one ends the step's sync time.
    pub async fn weights_arrived(&self, version: Version) {
        let Some(issued) = self.read(|run| run.publication_issued(version)).await else { return };
        let seconds = self.clock.now().saturating_sub(issued).as_secs_f64();
        let mut newest = self.newest();
        newest.sync_seconds.entry(version.step + 1).or_insert(seconds);
        newest.sync_seconds.retain(|step, _| *step > version.step);
    }

    /// A step's rollouts are done.
    pub fn rollouts_done(&self, step: u32, seconds: Option<f64>) {
        let mut newest = self.newest();
        newest.rollout_seconds.retain(|other, _| other.abs_diff(step) < STEPS_REMEMBERED);
        if let Some(seconds) = seconds {
            newest.rollout_seconds.insert(step, seconds);
        }
    }

    /// The group begins: the first step's time is counted from here.
    pub fn steps_begin(&self) {
        self.newest().step_ended.get_or_insert(self.clock.now());
    }

    /// Completes the learners' numbers of a step, records them once, and appends them to
    /// `metrics.jsonl`.
    pub async fn record_step(&self, mut metrics: StepMetrics) -> Result<(), StoreError> {
        let step = metrics.step;
        // Of a replayed step whose samples are pruned nothing is recorded: its first report stays.
        let samples =
            self.store.call(move |journal| journal.samples(step)).await.unwrap_or_default();
        let (dropped_groups, stale_samples) =
            self.store.call(move |journal| journal.left_out(step)).await?;
        let means = Means::of(&samples);
        metrics.staleness = staleness::histogram(step, &samples);
        (metrics.dropped_groups, metrics.stale_samples) = (dropped_groups, stale_samples);
        {
            let now = self.clock.now();
            let mut newest = self.newest();
            metrics.reward = means.reward;
            metrics.completion_tokens = means.completion_tokens;
            metrics.rollout_seconds = newest.rollout_seconds.remove(&step);
            metrics.sync_seconds = newest.sync_seconds.remove(&step);
            let seconds = newest
                .step_ended
                .map_or(metrics.train_seconds, |ended| now.saturating_sub(ended).as_secs_f64());
            metrics.tokens_per_second =
                if seconds > 0.0 { metrics.tokens as f64 / seconds } else { 0.0 };
            newest.step_ended = Some(now);
            self.metrics.step_done(&metrics, seconds);
        }
        let (files, recorded) = (self.files.clone(), metrics.clone());
        let new = self.store.call(move |journal| {
            let new = journal.report_step(&recorded)?;
            if new {
                files.append_metrics(&recorded);
            }
            Ok(new)
        });
        if new.await? {
            self.newest().metrics = Some(metrics);
        }
        Ok(())
    }

    /// Records an evaluation once and appends it to `evaluations.jsonl`, and its completions to
    /// read to `evaluation-samples.jsonl`.
    pub async fn record_evaluation(
        &self,
        metrics: EvaluationMetrics,
        shown: Vec<Shown>,
    ) -> Result<(), StoreError> {
        let (files, recorded) = (self.files.clone(), metrics.clone());
        let done = self.store.call(move |journal| {
            // First, since the journal does not hold them: after a crash in between the evaluation
            // is made again.
            files.append_evaluation_samples(recorded.step, &shown);
            if journal.put_evaluation(&recorded)? {
                files.append_evaluation(&recorded);
            }
            Ok(())
        });
        done.await?;
        self.newest().evaluation = Some(metrics);
        Ok(())
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Means over a step's samples; none where there are none.
#[derive(Debug, Default, PartialEq)]
struct Means {
    reward: Option<f64>,
    completion_tokens: Option<f64>,
}

impl Means {
    fn of(samples: &[crate::journal::Sample]) -> Self {
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            (!samples.is_empty()).then(|| values.sum::<f64>() / samples.len() as f64)
        };
        Self {
            reward: mean(&mut samples.iter().map(|sample| sample.reward)),
            completion_tokens: mean(
                &mut samples.iter().map(|sample| sample.completion_tokens.len() as f64),
            ),
        }
    }
}
