//! Rollouts: prompts → completions → rewards → journal; a step's batch is fixed when all of its
//! groups are there.
//!
//! ```text
//!  admission ─▶ ledger ─ next position ─▶ group: lease, sample, score ─▶ queue ─▶ journal, many at a time
//!                 ▲                                │                                  │
//!                 └───────── outcome ──────────────┴──────── on the disk ◀────────────┘
//!                 └─ batch complete ─▶ fix_batch
//! ```
//!
//! A sample that its verifier fails on is left out of its group, never scored 0. Samples that the
//! journal has already are not made again. The order in which they finish leaves no trace:
//! [`ledger`] judges groups in loader order.

pub mod completion;
pub mod group;
pub mod ledger;
pub mod request;
pub mod sampler;
pub mod score;
pub mod staleness;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rljob_protocol::version::Version;
use tokio::sync::{mpsc, oneshot};

use crate::coordinator::Coordinator;
use crate::core::Run;
use crate::core::admission::Admission;
use crate::driver::WorkError;
use crate::engines::Weights;
use crate::input::Input;
use crate::journal::{FixedBatch, Pending, Sample};
use group::{Done, Groups, Ticket};
use ledger::{Batch, Ledger, Next};
use sampler::Sampler;

/// Groups that wait for an engine or are at one.
const GROUPS: usize = 1024;
/// Scored samples that wait for the journal.
const QUEUE: usize = 4096;
/// Most samples in one journal call.
const WRITE: usize = 512;

/// A sample, and who waits until it is on the disk.
type Queued = (Sample, oneshot::Sender<()>);

/// Makes and fixes batches for as long as it is not cancelled; with `only`, the one that these
/// weights are for.
pub async fn run(
    coordinator: &Coordinator,
    input: &Arc<Input>,
    only: Option<Version>,
) -> Result<(), WorkError> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let groups = Groups { coordinator, input, sampler: coordinator.sampler(input), sender };
    let mut schedule = Schedule::resume(coordinator, input, only).await?;
    tokio::select! {
        result = schedule.run(&groups) => result,
        result = write(coordinator, receiver) => result.and(Err(WorkError::Interrupted)),
    }
}

/// What is under way.
struct Schedule<'a> {
    coordinator: &'a Coordinator,
    input: &'a Arc<Input>,
    only: Option<Version>,
    rule: Admission,
    ledger: Ledger,
    /// Samples that the journal had when this began, by position; taken out as their groups are
    /// admitted.
    pending: BTreeMap<u64, Vec<Pending>>,
    /// Of finished groups that are in no batch yet: samples, and when the first was asked for.
    finished: BTreeMap<u64, (usize, Option<Duration>)>,
    /// Samples made again since the newest batch.
    stale: u32,
}

impl<'a> Schedule<'a> {
    /// Goes on where the journal ends.
    async fn resume(
        coordinator: &'a Coordinator,
        input: &'a Arc<Input>,
        only: Option<Version>,
    ) -> Result<Self, WorkError> {
        let ((fixed_step, next_position), samples) = coordinator
            .store
            .call(|journal| Ok((journal.newest_batch()?, journal.pending()?)))
            .await?;
        // A batch that was fixed just before something failed is not made again.
        coordinator.change(|run, _| run.batch_fixed(fixed_step)).await?;
        let rule = Admission::of(&coordinator.config.spec);
        // A run that started from another one's checkpoint has used up that one's positions.
        let started_from = coordinator.read(Run::fixed_step).await;
        let beyond = started_from > fixed_step;
        let next_position = if beyond {
            u64::from(started_from) * u64::from(rule.batch_size)
        } else {
            next_position
        };
        let mut pending = BTreeMap::<u64, Vec<Pending>>::new();
        for sample in samples {
            pending.entry(sample.position).or_default().push(sample);
        }
        let attempts = coordinator
            .config
            .spec
            .rollout
            .dynamic_sampling
            .as_ref()
            .map_or(1, |dynamic| dynamic.max_attempts);
        let ledger = Ledger::new(rule, attempts, fixed_step.max(started_from), next_position);
        Ok(Self {
            coordinator,
            input,
            only,
            rule,
            ledger,
            pending,
            finished: BTreeMap::new(),
            stale: 0,
        })
    }

    async fn run(&mut self, groups: &Groups<'_>) -> Result<(), WorkError> {
        let mut changes = self.coordinator.changes();
        let mut under_way = FuturesUnordered::new();
        loop {
            changes.borrow_and_update();
            let through = self.through().await;
            while under_way.len() < GROUPS
                && let Some((position, step)) = self.ledger.admit(through)
            {
                let have = self.pending.remove(&position).unwrap_or_default();
                under_way.push(groups.make(self.ticket(position, step, have)));
            }
            if self.only.is_some_and(|version| self.ledger.step() > version.step + 1) {
                return Ok(());
            }
            tokio::select! {
                Some(done) = under_way.next() => self.finish(done?),
                // The sender lives as long as the coordinator.
                _ = changes.changed() => {}
            }
            while let Some(next) = self.ledger.take() {
                match next {
                    Next::Batch(batch) => self.fix(batch).await?,
                    Next::Again { position, step } => {
                        let have = self.discard_stale(position, step).await?;
                        under_way.push(groups.make(self.ticket(position, step, have)));
                    }
                }
            }
        }
    }

    /// The last step whose batch may be under way.
    async fn through(&self) -> u32 {
        match self.only {
            Some(version) => version.step + 1,
            None => {
                self.coordinator.read(Run::sampling).await.map_or(0, |sampling| sampling.through)
            }
        }
    }

    fn ticket(&self, position: u64, step: u32, have: Vec<Pending>) -> Ticket {
        let weights = self.only.map_or(Weights::Since(self.rule.oldest(step)), Weights::Exactly);
        Ticket { position, weights, have }
    }

    fn finish(&mut self, done: Done) {
        let began = self.finished.get(&done.position).and_then(|(_, began)| *began).or(done.began);
        self.finished.insert(done.position, (done.samples, began));
        self.ledger.finish(done.position, done.outcome);
    }

    /// Forgets the samples of a group that are too old for its step; answers the others.
    async fn discard_stale(&mut self, position: u64, step: u32) -> Result<Vec<Pending>, WorkError> {
        let rule = self.rule;
        let (stale, have) = self
            .coordinator
            .store
            .call(move |journal| {
                let group =
                    journal.pending()?.into_iter().filter(|sample| sample.position == position);
                let (stale, have): (Vec<_>, Vec<_>) =
                    group.partition(|sample| rule.refuses(step, sample.oldest));
                stale.iter().try_for_each(|sample| journal.discard(position, sample.index))?;
                Ok((stale.len() as u32, have))
            })
            .await?;
        self.stale += stale;
        self.coordinator.metrics.stale_samples.inc_by(stale.into());
        tracing::info!(position, step, samples = stale, "samples are too old and made again");
        Ok(have)
    }

    async fn fix(&mut self, batch: Batch) -> Result<(), WorkError> {
        let Batch { step, positions, dropped, capped, next_position } = batch;
        let later = self.finished.split_off(&next_position);
        let finished = std::mem::replace(&mut self.finished, later);
        if positions
            .iter()
            .all(|position| finished.get(position).is_none_or(|(samples, _)| *samples == 0))
        {
            return Err(WorkError::AllRejected { step });
        }
        if capped {
            tracing::warn!(
                step,
                dropped,
                "too many groups with equal rewards: the batch has some of them, since rollout.dynamicSampling.maxAttempts is reached"
            );
            self.coordinator
                .event(
                    "DynamicSamplingCapped",
                    serde_json::json!({"step": step, "dropped": dropped}),
                )
                .await;
        }
        let fixed = FixedBatch {
            step,
            positions,
            next_position,
            dropped_groups: dropped,
            stale_samples: std::mem::take(&mut self.stale),
        };
        let (files, input) = (self.coordinator.files.clone(), Arc::clone(self.input));
        let written = self.coordinator.store.call(move |journal| {
            journal.fix_batch(&fixed)?;
            files.append_samples(journal, &input.train)
        });
        written.await?;
        self.coordinator.metrics.dropped_groups.inc_by(dropped.into());
        let began = finished.values().filter_map(|(_, began)| *began).min();
        self.coordinator.rollouts_done(
            step,
            began.map(|began| self.coordinator.clock.now().saturating_sub(began).as_secs_f64()),
        );
        Ok(self.coordinator.change(|run, _| run.batch_fixed(step)).await?)
    }
}

/// Writes what the queue holds, many samples a transaction, until the senders are gone.
async fn write(
    coordinator: &Coordinator,
    mut receiver: mpsc::Receiver<Queued>,
) -> Result<(), WorkError> {
    let mut queued = Vec::with_capacity(WRITE);
    while receiver.recv_many(&mut queued, WRITE).await > 0 {
        let (samples, written): (Vec<_>, Vec<_>) = queued.drain(..).unzip();
        coordinator.store.call(move |journal| journal.put_samples(&samples)).await?;
        for waiting in written {
            // Whoever does not wait any more was cancelled.
            let _ = waiting.send(());
        }
    }
    Ok(())
}

impl Coordinator {
    /// A sampler of this run.
    pub fn sampler<'a>(&'a self, input: &'a Input) -> Sampler<'a> {
        let training = &self.config.spec.training;
        Sampler {
            fleet: &self.fleet,
            run_seed: training.seed,
            vocabulary: input.vocabulary,
            stop_token_ids: input.tokenizer.stop_token_ids(),
            deterministic: training.deterministic,
            clock: self.clock,
            nonce: AtomicU64::new(self.incarnation),
            interrupted: self.metrics.interrupted.clone(),
        }
    }
}
