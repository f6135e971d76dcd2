//! Opens a claimed run: reads back where it stands.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use rljob_crds::{EnginePurpose, RLJobSpec, RunConfig};
use rljob_protocol::status::{COORDINATOR_INPUT, LearnerFailure};
use rljob_storage::{RunStore, StorageError};
use tokio_util::sync::CancellationToken;

use crate::batches::Batches;
use crate::clock::Clock;
use crate::coordinator::Coordinator;
use crate::core::learner_failure::LEARNER_INPUT;
use crate::core::{Facts, Record, Run, Settings, Stage, record};
use crate::engines::{EngineClient, FixedFleets, Fleet};
use crate::files::Files;
use crate::inference::Collector;
use crate::input::InputError;
use crate::input::hub::Downloads;
use crate::learner_memory::LearnerMemory;
use crate::peers::RejectedPeers;
use crate::persistence::journal::DataPosition;
use crate::persistence::journal::shared::SharedJournal;
use crate::persistence::restore::RestoreError;
use crate::persistence::{checkpoints, exports, restore};
use crate::recorder::Recorder;
use crate::reward::Runner;
use crate::rollout::agent::Agents;
use crate::rollout::rejections::RejectionLimit;
use crate::run_handle::RunHandle;
use crate::scheduler;
use crate::telemetry::Metrics;
use crate::tracking::failures::Failures;

/// Reads back where the run of a claimed journal stands.
pub(crate) async fn open(
    config: Arc<RunConfig>,
    client: EngineClient,
    reward_runner: Runner,
    incarnation: u64,
    journal: SharedJournal,
) -> anyhow::Result<Coordinator> {
    let clock = Clock::start();
    let run_store = RunStore::of(&config)?;
    let files = Files::open(journal.fence())?;
    let (record, mut facts) = read_state(&journal, &run_store).await?;
    let newest = journal
        .call(|journal| Ok((journal.metrics(journal.last_step()?)?, journal.last_evaluation()?)))
        .await?;
    let (restore_from, failure) =
        match restore::choose(&config, &journal, !facts.checkpoints.is_empty()).await {
            Ok(restore) => (restore, None),
            Err(error @ RestoreError::None { .. }) => {
                (None, Some(scheduler::input_failure(&error)))
            }
            Err(error) => return Err(error.into()),
        };
    let settings = Settings { restore_from, ..Settings::from_config(&config) };
    let settings = settings.with_recorded_steps(&record);
    if let Some(restore) = settings.restore_from.as_ref().filter(|_| facts.checkpoints.is_empty()) {
        facts.last_step = facts.last_step.max(restore.version.step);
        facts.fixed_step = facts.fixed_step.max(restore.version.step);
    }
    let restored = settings.restore_from.as_ref().map(|restore| restore.path.clone());
    let restored_position = restored_position(&config, restored).await?;
    let record = reopened(given_another_chance(record), facts.last_step, settings.total_steps);
    let too_few_steps = too_few_steps(&settings, facts.last_step);
    let mut run = Run::new(settings, record, facts, incarnation, clock.now());
    if let Some(failure) = failure.or(too_few_steps) {
        run.fail(failure);
    }
    let agents = Agents::open(&config.spec, &reward_runner)
        .context("failed to listen for agents on a loopback port")?;
    let (evaluation_fleet, fixed_fleets) = other_fleets(&config.spec, &client, clock);
    let fleet = Fleet::new(&config.spec.inference, client, clock);
    let recorder = Recorder::new(journal.clone(), files, metrics(&config.spec)?, clock, newest);
    let rejections = RejectionLimit::new(config.spec.rollout.max_rejected_share);
    Ok(Coordinator {
        learner_memory: LearnerMemory::open(journal.clone(), &config.spec).await?,
        config,
        run_store,
        incarnation,
        restored_position,
        clock,
        run: RunHandle::new(run, journal.clone(), clock),
        journal,
        fleet: Arc::new(fleet),
        evaluation_fleet,
        fixed_fleets,
        recorder,
        batches: Batches::default(),
        inference: Collector::default(),
        rejected_peers: RejectedPeers::default(),
        downloads: Downloads::default(),
        reward_runner,
        agents: agents.map(Arc::new),
        rejections: Arc::new(rejections),
        tracker_failures: Failures::default(),
        stop: CancellationToken::new(),
    })
}

/// The failure of a run whose steps were lowered below those that are `done`. Those of epochs are
/// compared once the data is open.
fn too_few_steps(settings: &Settings, done: u32) -> Option<LearnerFailure> {
    let total = settings.total_steps;
    let is_below = settings.epochs.is_none() && done > total;
    is_below.then(|| scheduler::input_failure(&InputError::TooFewSteps { done, total }))
}

/// Metrics of a run with the GPUs of all trainer pods.
fn metrics(spec: &RLJobSpec) -> anyhow::Result<Metrics> {
    let pods = u32::try_from(spec.trainers()).unwrap_or_default();
    Ok(Metrics::new(spec.trainer.gpus().saturating_mul(pods))?)
}

/// The fleets of the engines that only evaluate, and of those whose models no step changes.
fn other_fleets(
    spec: &RLJobSpec,
    client: &EngineClient,
    clock: Clock,
) -> (Option<Arc<Fleet>>, FixedFleets) {
    let evaluation = spec.engines(EnginePurpose::Evaluation);
    let evaluation = evaluation.map(|engines| Fleet::new(engines, client.separate(), clock));
    (evaluation.map(Arc::new), FixedFleets::new(spec, client, clock))
}

/// Place in the training data after the checkpoint that the run starts from.
async fn restored_position(
    config: &RunConfig,
    checkpoint: Option<PathBuf>,
) -> anyhow::Result<Option<DataPosition>> {
    let Some(path) = checkpoint else { return Ok(None) };
    let bucket = config.bucket.clone();
    let read = move || checkpoints::position(&RunStore::at(&path, bucket.as_ref())?);
    let position = tokio::task::spawn_blocking(read).await?;
    position.context("failed to read the data position of the checkpoint in restoreFrom")
}

/// Reads the recorded state of the run, and the facts of its journal and its run store.
async fn read_state(
    journal: &SharedJournal,
    run_store: &RunStore,
) -> anyhow::Result<(Record, Facts)> {
    let (record, mut facts) = journal
        .call(|journal| {
            let facts = Facts {
                last_step: journal.last_step()?,
                fixed_step: journal.newest_batch()?.0,
                evaluated: journal.evaluated_steps()?,
                inferred: journal.inferred_steps()?,
                ..Facts::default()
            };
            Ok((journal.get_state(record::KEY)?, facts))
        })
        .await?;
    let record = match record {
        Some(json) => serde_json::from_value(json)
            .context("failed to read the run's state from the journal")?,
        None => Record::default(),
    };
    let run_store = run_store.clone();
    let listed = tokio::task::spawn_blocking(move || {
        Ok::<_, StorageError>((checkpoints::complete(&run_store)?, exports::newest(&run_store)?))
    });
    (facts.checkpoints, facts.exported_step) =
        listed.await?.context("failed to list checkpoints and exports")?;
    Ok((record, facts))
}

/// Input that could not be used may have been mended since: a new process looks again.
fn given_another_chance(mut record: Record) -> Record {
    let input = record.trainer.last_failure.as_ref().is_some_and(|failure| {
        [COORDINATOR_INPUT, scheduler::REWARD_REASON, LEARNER_INPUT]
            .contains(&failure.reason.as_str())
    });
    if record.trainer.stage == Stage::Failed && input {
        record.retry();
    }
    record
}

/// Reopens a finished run whose steps were raised: it continues from its last checkpoint. So does
/// one that was drained while the evaluations after its last step ran.
fn reopened(mut record: Record, last_step: u32, total_steps: u32) -> Record {
    if last_step >= total_steps {
        return record;
    }
    match record.trainer.stage {
        Stage::Finished => record.reopen(),
        Stage::Drained => record.exported = false,
        Stage::Forming { .. } | Stage::Running(_) | Stage::Stopping { .. } | Stage::Failed => {}
    }
    record
}
