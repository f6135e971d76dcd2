//! Rollouts: prompts → completions → rewards → journal. A step's batch is fixed when all of its
//! groups are complete.
//!
//! ```text
//!  admission ─▶ ledger ─ next position ─▶ group: lease, sample, score ─▶ queue ─▶ journal
//!                 ▲                                │                                │
//!                 └───────── outcome ──────────────┴─────────── written ◀───────────┘
//!                 └─ batch complete ─▶ fix_batch
//! ```
//!
//! A sample whose verifier or program fails is rejected, never scored 0, and sampled again with
//! another seed ([`group`]). Samples in the journal are not sampled again. With `batchOrder: Data`
//! the order of completion does not affect batches: [`ledger`] judges groups in loader order.

pub mod agent;
mod batch;
pub mod completion;
pub mod curriculum;
pub mod episode;
pub mod episodes;
pub mod group;
pub mod ledger;
pub mod play;
pub mod rejections;
pub mod request;
pub mod sampler;
pub mod score;
pub mod stop;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rljob_crds::RunConfig;
use rljob_crds::rollout::BatchOrder;
use rljob_protocol::version::Version;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::core::Run;
use crate::core::admission::Admission;
use crate::engines::{Fleet, Weights};
use crate::input::Input;
use crate::persistence::journal::shared::SharedJournal;
use crate::persistence::journal::{DataPosition, Pending};
use crate::recorder::Recorder;
use crate::run_handle::RunHandle;
use crate::work_error::WorkError;
use agent::Agents;
use curriculum::{Curriculum, Decision};
use group::{FinishedGroup, GroupRequest, Groups};
use ledger::{Ledger, Next};
use rejections::RejectionLimit;
use sampler::Sampler;
use writer::write;

/// Maximum number of concurrent groups.
const GROUPS: usize = 1024;
/// Capacity of the queue of scored samples.
const QUEUE: usize = 4096;

/// Handles that rollouts use.
pub struct Rollouts {
    pub config: Arc<RunConfig>,
    pub input: Arc<Input>,
    pub run: RunHandle,
    pub journal: SharedJournal,
    pub fleet: Arc<Fleet>,
    pub recorder: Recorder,
    /// Programs of agents, if the workflow has them.
    pub agents: Option<Arc<Agents>>,
    pub rejections: Arc<RejectionLimit>,
    pub clock: Clock,
    /// Random number of this process; part of request ids.
    pub incarnation: u64,
    /// Place in the training data after the checkpoint of `restoreFrom`.
    pub restored_position: Option<DataPosition>,
}

impl Rollouts {
    /// Samples and fixes batches until cancelled; with `only`, the batch sampled from that version.
    pub async fn run(&self, only: Option<Version>) -> Result<(), WorkError> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let interrupted = self.recorder.metrics.interrupted.clone();
        let sampler = Sampler::new(
            &self.config,
            &self.input,
            &self.fleet,
            self.clock,
            self.incarnation,
            interrupted,
        );
        let groups = Groups {
            config: &self.config,
            input: &self.input,
            recorder: &self.recorder,
            clock: self.clock,
            sampler,
            agents: self.agents.as_deref(),
            rejections: &self.rejections,
            sender,
        };
        let mut schedule = Schedule::resume(self, only).await?;
        tokio::select! {
            result = schedule.run(&groups) => result,
            result = write(&self.journal, receiver) => result.and(Err(WorkError::Interrupted)),
        }
    }
}

/// Groups in progress and finished groups that are in no batch yet.
struct Schedule<'a> {
    rollouts: &'a Rollouts,
    only: Option<Version>,
    rule: Admission,
    ledger: Ledger,
    curriculum: Curriculum,
    /// Samples that the journal had when this began, by position; taken out as their groups are
    /// admitted.
    pending: BTreeMap<u64, Vec<Pending>>,
    /// Of finished groups without a batch: time of the first request, and rejected tries.
    finished: BTreeMap<u64, (Option<Duration>, u32)>,
    /// Number of samples that were sampled again since the newest batch.
    stale: u32,
}

impl<'a> Schedule<'a> {
    /// Resumes after the newest batch in the journal.
    async fn resume(rollouts: &'a Rollouts, only: Option<Version>) -> Result<Self, WorkError> {
        let ((fixed_step, data), samples, pass_rates) = rollouts
            .journal
            .call(|journal| Ok((journal.resume()?, journal.pending()?, journal.pass_rates()?)))
            .await?;
        // A batch that was fixed just before something failed is not made again.
        rollouts.run.change(|run, _| run.batch_fixed(fixed_step)).await?;
        let spec = &rollouts.config.spec;
        let rule = Admission::of(spec);
        // A run that started from another one's checkpoint has used up that one's positions.
        let started_from = rollouts.run.read(Run::fixed_step).await;
        let beyond = started_from > fixed_step;
        let data = if beyond {
            let without_drops = || DataPosition {
                next_position: u64::from(started_from).saturating_mul(rule.batch_size.into()),
                passed_over: Vec::new(),
            };
            rollouts.restored_position.clone().unwrap_or_else(without_drops)
        } else {
            data
        };
        let mut pending = BTreeMap::<u64, Vec<Pending>>::new();
        for sample in samples {
            pending.entry(sample.position).or_default().push(sample);
        }
        let dynamic = spec.rollout.dynamic_sampling.as_ref();
        let attempts = dynamic.map_or(1, |dynamic| dynamic.max_attempts);
        let fixed_step = fixed_step.max(started_from);
        let ledger = Ledger::new(rule, attempts, fixed_step, data.next_position)
            .with_passed_over(data.passed_over);
        let curriculum = Curriculum::new(&spec.dataset.train, pass_rates);
        let finished = BTreeMap::new();
        Ok(Self { rollouts, only, rule, ledger, curriculum, pending, finished, stale: 0 })
    }

    async fn run(&mut self, groups: &Groups<'_>) -> Result<(), WorkError> {
        let mut changes = self.rollouts.run.changes();
        let mut in_progress = FuturesUnordered::new();
        loop {
            changes.borrow_and_update();
            let through = self.through().await;
            while in_progress.len() < GROUPS
                && let Some((position, step)) = self.admit(through)?
            {
                let have = self.pending.remove(&position).unwrap_or_default();
                in_progress.push(groups.make(self.request(position, step, have)));
            }
            if self.only.is_some_and(|version| self.ledger.step() > version.step.saturating_add(1))
            {
                return Ok(());
            }
            tokio::select! {
                Some(done) = in_progress.next() => self.finish(done?),
                // The sender lives as long as the coordinator.
                _ = changes.changed() => {}
            }
            while let Some(next) = self.ledger.take() {
                match next {
                    Next::Batch(batch) => self.fix(batch).await?,
                    Next::Again { position, step } => {
                        let have = self.discard_stale(position, step).await?;
                        in_progress.push(groups.make(self.request(position, step, have)));
                    }
                }
            }
            self.curriculum.judge(self.ledger.judged());
        }
    }

    /// The next position that is sampled, if a step up to `through` has room for it; those that the
    /// curriculum skips are passed over, but at most as many as there are rows.
    fn admit(&mut self, through: u32) -> Result<Option<(u64, u32)>, WorkError> {
        while let Some((position, step)) = self.ledger.upcoming(through) {
            let train = self.curriculum.is_used().then(|| self.rollouts.input.train());
            let train = train.transpose()?;
            let visit = train.and_then(|train| train.visit(position));
            let may_skip = train.is_some_and(|train| self.ledger.may_skip(train.len()));
            match visit.map_or(Decision::Sample, |visit| self.curriculum.decide(visit)) {
                Decision::Wait => return Ok(None),
                Decision::Skip if may_skip => self.ledger.skip(),
                Decision::Skip | Decision::Sample => {
                    if let Some(visit) = visit {
                        self.curriculum.sample(position, visit);
                    }
                    self.ledger.admit();
                    return Ok(Some((position, step)));
                }
            }
        }
        Ok(None)
    }

    /// Last step whose batch may be in progress.
    async fn through(&self) -> u32 {
        match self.only {
            Some(version) => version.step.saturating_add(1),
            None => self.rollouts.run.read(Run::sampling_limit).await,
        }
    }

    fn request(&self, position: u64, step: u32, have: Vec<Pending>) -> GroupRequest {
        let weights = self.only.map_or(Weights::Since(self.rule.oldest(step)), Weights::Exactly);
        GroupRequest { position, weights, have }
    }

    fn finish(&mut self, done: FinishedGroup) {
        let began = self.finished.get(&done.position).and_then(|(began, _)| *began);
        self.finished.insert(done.position, (began.or(done.began), done.rejected));
        self.curriculum.finish(done.position, done.rewards);
        self.ledger.finish(done.position, done.outcome);
        if self.rule.order == BatchOrder::Finished {
            self.curriculum.judge_group(done.position);
        }
    }
}
