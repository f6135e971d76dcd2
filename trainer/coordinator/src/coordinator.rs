//! State shared by the HTTP server and the scheduler: handles to the run, the journal, the engines
//! and the recorder. Lower layers receive the handles that they use.

use std::sync::Arc;
use std::time::Instant;

use rljob_crds::RunConfig;
use rljob_crds::job::RunningCompletions;
use rljob_protocol::status::CoordinatorStatus;
use rljob_storage::RunStore;
use tokio_util::sync::CancellationToken;

use crate::batches::Batches;
use crate::clock::Clock;
use crate::core::Run;
use crate::engines::{FixedFleets, Fleet};
use crate::evaluation::Evaluator;
use crate::inference::Collector;
use crate::input::Input;
use crate::input::hub::Downloads;
use crate::learner_memory::LearnerMemory;
use crate::peers::RejectedPeers;
use crate::persistence::journal::DataPosition;
use crate::persistence::journal::shared::SharedJournal;
use crate::recorder::Recorder;
use crate::reward::{Rewards, Runner, VerifierPods};
use crate::rollout::Rollouts;
use crate::rollout::agent::Agents;
use crate::rollout::rejections::RejectionLimit;
use crate::run_handle::RunHandle;
use crate::sync::{Purpose, WeightSync, distributed, folders};
use crate::teacher::Teacher;
use crate::tracking::failures::Failures;

/// The handles of one coordinator process.
pub struct Coordinator {
    pub config: Arc<RunConfig>,
    pub run_store: RunStore,
    /// Random number of this process; part of request ids, folder names and group names.
    pub incarnation: u64,
    /// Place in the training data after the checkpoint of `restoreFrom`.
    pub restored_position: Option<DataPosition>,
    pub clock: Clock,
    pub journal: SharedJournal,
    pub run: RunHandle,
    /// Engines of rollouts.
    pub fleet: Arc<Fleet>,
    /// Engines that only evaluate, if the job has them.
    pub evaluation_fleet: Option<Arc<Fleet>>,
    /// Engines of models that no step changes.
    pub fixed_fleets: FixedFleets,
    pub recorder: Recorder,
    pub batches: Batches,
    /// Parts of the batch that a group infers.
    pub inference: Collector,
    pub learner_memory: LearnerMemory,
    pub rejected_peers: RejectedPeers,
    pub downloads: Downloads,
    /// Where programs of rewards, tools and agents run.
    pub reward_runner: Runner,
    /// Programs of agents, if the workflow has them.
    pub agents: Option<Arc<Agents>>,
    /// Rejected samples of rollouts.
    pub rejections: Arc<RejectionLimit>,
    /// Trackers that fail.
    pub tracker_failures: Failures,
    /// Stops every task of the process.
    pub stop: CancellationToken,
}

impl Coordinator {
    /// The run's status for the operator.
    pub async fn status(&self) -> CoordinatorStatus {
        let (metrics, evaluation) = self.recorder.newest_metrics();
        let now = self.clock.now();
        let mut status = self
            .run
            .read(|run| {
                let current = run.record().published.as_ref().map(|published| published.version);
                run.status(metrics, evaluation, self.fleet.states(current), now)
            })
            .await;
        status.unsupported = self.rejected_peers.recent(now);
        status.download = self.downloads.progress();
        status.reward_outage = self.batches.input().and_then(|input| {
            let rewards = input.rewards.as_ref().and_then(Rewards::outage);
            let teacher = || input.teacher.as_ref().and_then(Teacher::outage);
            let agents = || self.agents.as_ref().and_then(|agents| agents.outage());
            rewards.or_else(|| input.workflow.outage()).or_else(teacher).or_else(agents)
        });
        status.reward_failure = self.batches.input().and_then(|input| {
            let failures =
                [input.rewards.as_ref().and_then(Rewards::failure), input.workflow.failure()];
            failures.into_iter().flatten().min_by_key(|failure| failure.answered)
        });
        status.journal_failure = self.journal.failure(Instant::now());
        status.tracker_failure = self.tracker_failures.text();
        status.memory = self.learner_memory.newest(None);
        for group in &mut status.groups {
            group.memory = self.learner_memory.newest(Some(&group.name));
        }
        status.requests = Some(self.fleet.request_counts());
        if let Some(fleet) = &self.evaluation_fleet {
            let (current, pending) = self.run.read(Run::evaluation_progress).await;
            status.evaluation_engines = fleet.evaluation_states(current);
            status.pending_evaluations = Some(pending);
        }
        let states = |fleet: &Arc<Fleet>| fleet.states(None);
        status.reward_engines = self.fixed_fleets.reward.iter().flat_map(states).collect();
        status.teacher_engines = self.fixed_fleets.teacher.iter().flat_map(states).collect();
        status.verifiers = self.verifier_pods().map(VerifierPods::load);
        status
    }

    /// The verifier pods, in jobs that have them.
    pub fn verifier_pods(&self) -> Option<&VerifierPods> {
        match &self.reward_runner {
            Runner::Pods(pods) => Some(pods),
            Runner::Socket(_) | Runner::Program(_) => None,
        }
    }

    /// Handles for rollouts on `input`.
    pub fn rollouts(&self, input: &Arc<Input>) -> Rollouts {
        Rollouts {
            config: Arc::clone(&self.config),
            input: Arc::clone(input),
            run: self.run.clone(),
            journal: self.journal.clone(),
            fleet: Arc::clone(&self.fleet),
            recorder: self.recorder.clone(),
            agents: self.agents.clone(),
            rejections: Arc::clone(&self.rejections),
            clock: self.clock,
            incarnation: self.incarnation,
            restored_position: self.restored_position.clone(),
        }
    }

    /// Handles for evaluations on `input`.
    pub fn evaluator(&self, input: &Arc<Input>) -> Evaluator {
        Evaluator {
            config: Arc::clone(&self.config),
            input: Arc::clone(input),
            run: self.run.clone(),
            fleet: Arc::clone(self.evaluation_fleet.as_ref().unwrap_or(&self.fleet)),
            recorder: self.recorder.clone(),
            agents: self.agents.clone(),
            clock: self.clock,
            incarnation: self.incarnation,
        }
    }

    /// Handles for weight updates of the engines of rollouts.
    pub fn weight_sync(&self) -> WeightSync {
        let running = self.config.spec.weight_sync.running_completions.unwrap_or_default();
        self.weight_sync_of(Purpose::Rollouts, &self.fleet, running)
    }

    /// Handles for weight updates of the engines that only evaluate. No completions run then,
    /// except those of an earlier coordinator, which are not used.
    pub fn evaluation_weight_sync(&self) -> Option<WeightSync> {
        let fleet = self.evaluation_fleet.as_ref()?;
        Some(self.weight_sync_of(Purpose::Evaluations, fleet, RunningCompletions::default()))
    }

    /// Removes weights that no evaluation needs. What fails is logged and tried after the next one.
    pub async fn prune_evaluation_weights(&self) {
        let (directory, run) = (self.config.run_directory.clone(), self.run.read(Run::clone).await);
        let prune = move || {
            folders::prune_evaluations(&directory, |own| run.is_evaluation_folder_unused(own))
        };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(prune).await {
            tracing::warn!(%error, "failed to remove weights of earlier evaluations");
        }
    }

    /// All sets of engines.
    pub fn fleets(&self) -> impl Iterator<Item = &Arc<Fleet>> {
        let updated = std::iter::once(&self.fleet).chain(&self.evaluation_fleet);
        updated.chain(self.fixed_fleets.iter())
    }

    fn weight_sync_of(
        &self,
        purpose: Purpose,
        fleet: &Arc<Fleet>,
        running: RunningCompletions,
    ) -> WeightSync {
        WeightSync {
            purpose,
            run: self.run.clone(),
            fleet: Arc::clone(fleet),
            fence: self.journal.fence().clone(),
            recorder: self.recorder.clone(),
            clock: self.clock,
            backend: distributed::backend(self.config.spec.inference.gpus()),
            running,
        }
    }
}
