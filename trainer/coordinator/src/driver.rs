//! Does what the run asks for: time passes, checkpoints are looked up, and what the learners wait
//! for, or will need, is made.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rljob_protocol::status::LearnerFailure;
use rljob_protocol::version::Version;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::checkpoints::Verifier;
use crate::coordinator::Coordinator;
use crate::core::Run;
use crate::core::work::Work;
use crate::data::Dataset;
use crate::input::{self, Input, InputError};
use crate::journal::FixedBatch;
use crate::pack::batch::SampleError;
use crate::reward::RewardError;
use crate::store::StoreError;
use crate::{evaluation, rollout};

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(250);
/// Before work that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Reason of a failure that no restart mends.
pub const INPUT_REASON: &str = "CoordinatorInput";

/// Work that was not finished.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The input is wrong: the run fails.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A supervised sample is wrong: the run fails.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// `grpo` or an evaluation without a reward: the run fails.
    #[error("the spec has no reward: set spec.reward")]
    NoReward,
    /// An evaluation without data.
    #[error("the spec has no evaluation data")]
    NoEvaluationData,
    /// The verifier is broken: the run fails.
    #[error(transparent)]
    Verifier(#[from] RewardError),
    /// Nothing is left to train on or to evaluate: the run fails.
    #[error(
        "the verifier failed on every completion of step {step}: the coordinator's log says how"
    )]
    AllRejected {
        /// The step.
        step: u32,
    },
    /// The journal failed: tried again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Not representable as JSON.
    #[error("failed to write sampling parameters as JSON")]
    Json(#[from] serde_json::Error),
    /// The process is ending.
    #[error("the work was interrupted")]
    Interrupted,
}

impl WorkError {
    fn is_fatal(&self) -> bool {
        !matches!(self, Self::Store(_) | Self::Interrupted)
    }
}

/// Lets time pass for the run until `stop`.
pub async fn tick(coordinator: Arc<Coordinator>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut verifier = Verifier::default();
    loop {
        tokio::select! {
            () = coordinator.stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let forming = coordinator.read(Run::awaits_verification).await;
        // A group forms from what its run store holds, not from what was reported.
        let complete =
            if forming { usable_checkpoints(&coordinator, &mut verifier).await } else { None };
        let changed = coordinator.change(|run, now| {
            if let Some(complete) = complete {
                run.checkpoints_verified(complete);
            }
            run.tick(now);
        });
        if let Err(error) = changed.await {
            tracing::error!(error = %crate::error_line(&error), "failed to record the run's state; trying again");
        }
    }
}

/// Checkpoints that a group may start from. What is refused is said in the log and in the journal.
async fn usable_checkpoints(
    coordinator: &Arc<Coordinator>,
    verifier: &mut Verifier,
) -> Option<BTreeSet<Version>> {
    let (run_store, mut taken) = (coordinator.run_store.clone(), std::mem::take(verifier));
    let verified = tokio::task::spawn_blocking(move || {
        let found = taken.usable(&run_store);
        (taken, found)
    });
    let (returned, found) = verified.await.ok()?;
    *verifier = returned;
    let found = found.inspect_err(|error| tracing::warn!(error = %crate::error_line(error), "failed to look at the checkpoints; trying again")).ok()?;
    for refusal in found.refused {
        let used = found.usable.last().map_or_else(
            || "the run starts from its beginning".to_owned(),
            |version| format!("{version} is used"),
        );
        tracing::warn!("refused checkpoint {}: {}; {used}", refusal.version, refusal.detail);
        coordinator
            .event(
                "CheckpointRefused",
                serde_json::json!({"version": refusal.version, "detail": refusal.detail}),
            )
            .await;
    }
    Some(found.usable)
}

/// Opens the input, then does the wanted work until `stop`.
pub async fn work(coordinator: Arc<Coordinator>) {
    let input = tokio::select! {
        () = coordinator.stop.cancelled() => return,
        input = open(&coordinator) => input,
    };
    let input = match input {
        Ok(input) => Arc::new(input),
        Err(error) => return fail(&coordinator, &error).await,
    };
    let rows = |data: &Dataset| serde_json::json!({"rows": data.len(), "dropped": data.dropped()});
    coordinator.event("DataOpened", serde_json::json!({"train": rows(&input.train), "evaluation": input.evaluation.as_ref().map(rows)})).await;
    coordinator.batches.set_input(Arc::clone(&input));
    let (files, data) = (coordinator.files.clone(), Arc::clone(&input));
    if let Err(error) =
        coordinator.store.call(move |journal| files.append_samples(journal, &data.train)).await
    {
        tracing::warn!(error = %crate::error_line(&error), "failed to read rollouts to show");
    }
    if let Err(error) = coordinator.change(|run, _| run.data_opened()).await {
        tracing::error!(error = %crate::error_line(&error), "failed to record the run's state");
    }
    let mut changes = coordinator.changes();
    let (mut for_learners, mut rollouts) = (Running::default(), Running::default());
    loop {
        let (work, sampling) = coordinator.read(|run| (run.work(), run.sampling())).await;
        let (awaited, sampled) =
            (awaited(work), sampling.map(|sampling| Task::Rollouts { only: sampling.only }));
        for_learners.switch(&coordinator, &input, awaited).await;
        rollouts.switch(&coordinator, &input, sampled).await;
        tokio::select! {
            () = coordinator.stop.cancelled() => break,
            _ = changes.changed() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
    for_learners.end().await;
    rollouts.end().await;
}

async fn open(coordinator: &Coordinator) -> Result<Input, WorkError> {
    input::wait_for_model(&coordinator.config).await?;
    let config = coordinator.config.clone();
    Ok(tokio::task::spawn_blocking(move || Input::open(&config))
        .await
        .map_err(|_| WorkError::Interrupted)??)
}

/// Something that goes on until it is done or not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Evaluate these weights.
    Evaluate(Version),
    /// Make the batch of this step from the data set.
    Prepare(u32),
    /// Sample batches: the one that these weights are for, or as far ahead as is admitted.
    Rollouts { only: Option<Version> },
}

/// The work that is no sampling.
fn awaited(work: Work) -> Option<Task> {
    match work {
        Work::None | Work::Validate | Work::Rollout(_) => None,
        Work::Evaluate(version) => Some(Task::Evaluate(version)),
        Work::Prepare { step } => Some(Task::Prepare(step)),
    }
}

/// The task under way.
#[derive(Default)]
struct Running {
    task: Option<(Task, CancellationToken, JoinHandle<()>)>,
}

impl Running {
    /// Ends what is not wanted any more, begins what is.
    async fn switch(
        &mut self,
        coordinator: &Arc<Coordinator>,
        input: &Arc<Input>,
        wanted: Option<Task>,
    ) {
        if self
            .task
            .as_ref()
            .is_some_and(|(task, _, handle)| Some(*task) == wanted && !handle.is_finished())
        {
            return;
        }
        self.end().await;
        let Some(wanted) = wanted else { return };
        let stop = coordinator.stop.child_token();
        let (coordinator, input, stopped) =
            (Arc::clone(coordinator), Arc::clone(input), stop.clone());
        let handle = tokio::spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = perform(&coordinator, &input, wanted) => {}
            }
        });
        self.task = Some((wanted, stop, handle));
    }

    async fn end(&mut self) {
        if let Some((_, stop, handle)) = self.task.take() {
            stop.cancel();
            // It ends at its next await; a panic in it was logged by the runtime.
            let _ = handle.await;
        }
    }
}

async fn perform(coordinator: &Arc<Coordinator>, input: &Arc<Input>, task: Task) {
    let result = match task {
        Task::Evaluate(version) => evaluate(coordinator, input, version).await,
        Task::Rollouts { only } => rollout::run(coordinator, input, only).await,
        Task::Prepare(step) => prepare(coordinator, input, step).await,
    };
    match result {
        Ok(()) => {}
        Err(error) if error.is_fatal() => fail(coordinator, &error).await,
        Err(error) => {
            tracing::error!(error = %crate::error_line(&error), ?task, "a task failed; trying again");
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn evaluate(
    coordinator: &Coordinator,
    input: &Arc<Input>,
    version: Version,
) -> Result<(), WorkError> {
    let metrics = evaluation::run(coordinator, input, version).await?;
    tracing::info!(
        step = metrics.step,
        sampled = metrics.sampled,
        greedy = metrics.greedy,
        seconds = metrics.seconds,
        "evaluated"
    );
    Ok(coordinator.change(|run, _| run.evaluated(version.step)).await?)
}

/// A supervised batch is a pure function of the data; it is made once here so that what is wrong
/// with it is found before a learner asks.
async fn prepare(
    coordinator: &Coordinator,
    input: &Arc<Input>,
    step: u32,
) -> Result<(), WorkError> {
    crate::batches::supervised(coordinator.config.clone(), Arc::clone(input), step).await?;
    let batch = FixedBatch { step, ..FixedBatch::default() };
    coordinator.store.call(move |journal| journal.fix_batch(&batch)).await?;
    Ok(coordinator.change(|run, _| run.batch_fixed(step)).await?)
}

/// The failure of a run whose input is wrong, in the words of the error.
pub fn input_failure(error: &(dyn std::error::Error + 'static)) -> LearnerFailure {
    let message = crate::error_line(error);
    tracing::error!(reason = INPUT_REASON, "{message}");
    LearnerFailure { reason: INPUT_REASON.to_owned(), message, supervisor: None, exit_code: None }
}

async fn fail(coordinator: &Coordinator, error: &WorkError) {
    let failure = input_failure(error);
    while let Err(error) = coordinator.change(|run, _| run.fail(failure.clone())).await {
        tracing::error!(error = %crate::error_line(&error), "failed to record the failure; trying again");
        tokio::time::sleep(RETRY).await;
    }
}
