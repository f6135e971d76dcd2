//! Scheduler: advances the state machine with time and runs the work that it asks for.
//!
//! ```text
//!  tick   every 250 ms, less often after failures: verified checkpoints ─▶ run.tick(now)
//!  work   input ─▶ on every change of the run: blocking work (evaluation, supervised batch)
//!                                              sampling (rollouts), beside it
//!                                              evaluation on separate engines, beside both
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rljob_crds::names::DROPPED_ROWS_FILE;
use rljob_protocol::status::{COORDINATOR_INPUT, LearnerFailure};
use rljob_protocol::version::Version;
use rljob_storage::StorageError;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::coordinator::Coordinator;
use crate::core::Run;
use crate::core::work::Work;
use crate::data::{Dataset, Part};
use crate::input::{self, Input, InputError};
use crate::persistence::checkpoints::Verifier;
use crate::persistence::data_identity::DataIdentityError;
use crate::persistence::journal::FixedBatch;
use crate::reward::RewardError;
use crate::work_error::WorkError;

/// Interval between two ticks of the run.
const TICK: Duration = Duration::from_millis(250);
/// First and longest delay before failed work is retried.
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);
/// Failure reason of a defect of the coordinator.
pub const PANIC_REASON: &str = "CoordinatorPanicked";
/// Failure reason of a verifier that was down for too long.
pub const REWARD_REASON: &str = "RewardUnavailable";

/// Advances the run with time until the process stops.
pub async fn tick(coordinator: Arc<Coordinator>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut verifier, mut failures) = (Verifier::default(), 0_u32);
    loop {
        let next = async {
            if let Some(earlier) = failures.checked_sub(1) {
                tokio::time::sleep(retry_delay(earlier)).await;
            }
            ticks.tick().await
        };
        tokio::select! {
            () = coordinator.stop.cancelled() => return,
            _ = next => {}
        }
        let succeeded = tick_once(&coordinator, &mut verifier).await;
        failures = if succeeded { 0 } else { failures.saturating_add(1) };
    }
}

/// Advances the run once. Returns false after a failure, which is logged.
async fn tick_once(coordinator: &Coordinator, verifier: &mut Verifier) -> bool {
    let forming = coordinator.run.read(Run::awaits_verification).await;
    // A group restores from checkpoints found in the run store, not from reported ones.
    let complete = if forming { usable_checkpoints(coordinator, verifier).await } else { None };
    let verified = complete.is_some() || !forming;
    let changed = coordinator.run.change(|run, now| {
        if let Some(complete) = complete {
            run.checkpoints_verified(complete);
        }
        run.tick(now);
    });
    let recorded = changed.await.inspect_err(|error| {
        tracing::error!(
            error = %crate::error_line(error),
            "failed to record the run's state; retrying"
        );
    });
    verified && recorded.is_ok()
}

/// Checkpoints that a group may restore. Rejected ones are logged and journaled.
async fn usable_checkpoints(
    coordinator: &Coordinator,
    verifier: &mut Verifier,
) -> Option<BTreeSet<Version>> {
    let (run_store, mut taken) = (coordinator.run_store.clone(), std::mem::take(verifier));
    let verified = tokio::task::spawn_blocking(move || {
        let found = taken.usable(&run_store);
        (taken, found)
    });
    let (returned, found) = match verified.await {
        Ok(verified) => verified,
        Err(error) => {
            if error.is_panic() {
                fail(coordinator, &WorkError::from(error)).await;
            }
            return None;
        }
    };
    *verifier = returned;
    let warn = |error: &StorageError| {
        tracing::warn!(
            error = %crate::error_line(error),
            "failed to verify checkpoints; retrying"
        );
    };
    let found = found.inspect_err(warn).ok()?;
    for rejected in found.rejected {
        let used = found.usable.last().map_or_else(
            || "the run starts from its beginning".to_owned(),
            |version| format!("{version} is used"),
        );
        tracing::warn!("rejected checkpoint {}: {}; {used}", rejected.version, rejected.detail);
        let detail = serde_json::json!({"version": rejected.version, "detail": rejected.detail});
        coordinator.recorder.event("CheckpointRejected", detail).await;
    }
    Some(found.usable)
}

/// Opens the input, then runs the requested work until the process stops.
pub async fn work(coordinator: Arc<Coordinator>) {
    let input = tokio::select! {
        () = coordinator.stop.cancelled() => return,
        input = open_with_retries(&coordinator) => input,
    };
    let input = match input {
        Ok(input) => Arc::new(input),
        Err(error) => return fail(&coordinator, &error).await,
    };
    input_opened(&coordinator, &input).await;
    let mut changes = coordinator.run.changes();
    let [mut blocking, mut sampling, mut evaluating] = [(); 3].map(|()| WorkSlot::default());
    loop {
        let wanted =
            |run: &Run| [run.work().without_sampling(), run.sampling_work(), run.evaluation_work()];
        let wanted = coordinator.run.read(wanted).await;
        for (slot, wanted) in
            [&mut blocking, &mut sampling, &mut evaluating].into_iter().zip(wanted)
        {
            slot.switch(&coordinator, &input, wanted).await;
        }
        tokio::select! {
            () = coordinator.stop.cancelled() => break,
            _ = changes.changed() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
    let _ = (blocking.cancel().await, sampling.cancel().await, evaluating.cancel().await);
}

/// Opens the input. Returns errors that fail the run.
async fn open_with_retries(coordinator: &Coordinator) -> Result<Input, WorkError> {
    let mut failures = 0_u32;
    loop {
        let error = match open(coordinator).await {
            Err(error) if !error.is_fatal() => crate::error_line(&error),
            opened => return opened,
        };
        tracing::error!(error, "failed to open the input; retrying");
        tokio::time::sleep(retry_delay(failures)).await;
        failures = failures.saturating_add(1);
    }
}

async fn open(coordinator: &Coordinator) -> Result<Input, WorkError> {
    let config = &coordinator.config;
    let downloads = &coordinator.downloads;
    input::hub::download(config, &coordinator.run_store, downloads)
        .await
        .map_err(InputError::from)?;
    input::wait_for_model(config).await?;
    let (config, runner) = (Arc::clone(&coordinator.config), coordinator.reward_runner.clone());
    let engines = coordinator.reward_fleet.clone();
    let open = move || Input::open(&config, &runner, engines.as_ref());
    let input = tokio::task::spawn_blocking(open).await??;
    let (Some(train), Some(identity)) = (&input.train, input.train_identity.clone()) else {
        return Ok(input);
    };
    match identity.check(&coordinator.journal, train.path().to_owned()).await {
        Ok(()) => Ok(input),
        Err(DataIdentityError::Journal(error)) => Err(error.into()),
        Err(error) => Err(InputError::from(error).into()),
    }
}

/// Records the opened input and makes it available to the learners.
async fn input_opened(coordinator: &Coordinator, input: &Arc<Input>) {
    let rows = |part: &Part| {
        let (dropped, unusable) = (part.filtered().len(), part.unusable().len());
        let rows =
            serde_json::json!({"rows": part.len(), "dropped": dropped, "unusable": unusable});
        (part.label().to_owned(), rows)
    };
    let parts = input.datasets().flat_map(Dataset::parts);
    let detail = serde_json::Value::Object(parts.map(rows).collect());
    coordinator.recorder.event("DataOpened", detail).await;
    list_dropped_rows(coordinator, input).await;
    coordinator.batches.set_input(Arc::clone(input));
    let (files, data) = (coordinator.recorder.files.clone(), Arc::clone(input));
    let appended = coordinator.journal.call(move |journal| {
        data.train.as_ref().map_or(Ok(()), |train| files.append_samples(journal, train))
    });
    if let Err(error) = appended.await {
        tracing::warn!(error = %crate::error_line(&error), "failed to append to samples.jsonl");
    }
    if let Err(error) = coordinator.run.change(|run, _| run.data_opened()).await {
        tracing::error!(error = %crate::error_line(&error), "failed to record the run's state");
    }
}

/// Counts the rows with unusable reference answers, and lists all dropped rows in the run
/// directory.
async fn list_dropped_rows(coordinator: &Coordinator, input: &Arc<Input>) {
    let (fence, data) = (coordinator.journal.fence().clone(), Arc::clone(input));
    let rows = move || {
        let parts = || data.datasets().flat_map(Dataset::parts);
        let unusable =
            parts().flat_map(|part| part.unusable().iter().map(|row| row.line(part.label())));
        let filtered =
            parts().flat_map(|part| part.filtered().iter().map(|row| row.line(part.label())));
        crate::files::write_dropped_rows(&fence, unusable.chain(filtered))
    };
    let parts = input.datasets().flat_map(Dataset::parts);
    let count = parts.fold(0_usize, |sum, part| sum.saturating_add(part.unusable().len()));
    coordinator.recorder.metrics.dropped_rows.set(i64::try_from(count).unwrap_or(i64::MAX));
    if count > 0 {
        tracing::warn!(
            rows = count,
            file = DROPPED_ROWS_FILE,
            "dropped rows whose reference answers no reward can compare"
        );
    }
    match tokio::task::spawn_blocking(rows).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "failed to write {DROPPED_ROWS_FILE}"),
        Err(error) => tracing::warn!(%error, "failed to list dropped rows"),
    }
}

/// Work in progress, at most one at a time.
#[derive(Default)]
struct WorkSlot {
    current: Option<(Work, CancellationToken, JoinHandle<Ended>)>,
    /// Consecutive failures.
    failures: u32,
}

/// The end of work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Done,
    /// Will be retried.
    Failed,
}

impl WorkSlot {
    /// Cancels work that is no longer wanted and starts `wanted`.
    async fn switch(&mut self, coordinator: &Arc<Coordinator>, input: &Arc<Input>, wanted: Work) {
        if self
            .current
            .as_ref()
            .is_some_and(|(work, _, handle)| *work == wanted && !handle.is_finished())
        {
            return;
        }
        if let Some(panicked) = self.cancel().await {
            return fail(coordinator, &WorkError::Panicked(panicked)).await;
        }
        if wanted == Work::None {
            return;
        }
        let stop = coordinator.stop.child_token();
        let (coordinator, input, stopped) =
            (Arc::clone(coordinator), Arc::clone(input), stop.clone());
        let delay = retry_delay(self.failures);
        let handle = tokio::spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => Ended::Done,
                ended = perform(&coordinator, &input, wanted, delay) => ended,
            }
        });
        self.current = Some((wanted, stop, handle));
    }

    /// Returns the error of work that panicked.
    async fn cancel(&mut self) -> Option<JoinError> {
        let (_, stop, handle) = self.current.take()?;
        stop.cancel();
        // The task ends at its next await point.
        match handle.await {
            Ok(Ended::Done) => self.failures = 0,
            Ok(Ended::Failed) => self.failures = self.failures.saturating_add(1),
            Err(error) => return Some(error).filter(JoinError::is_panic),
        }
        None
    }
}

/// Delay of a retry after a number of consecutive failures: 1, 2, 4, … 30 seconds.
fn retry_delay(failures: u32) -> Duration {
    RETRY.saturating_mul(1 << failures.min(5)).min(MAX_RETRY)
}

/// Performs the work; waits `delay` if it fails and will be retried.
async fn perform(
    coordinator: &Coordinator,
    input: &Arc<Input>,
    work: Work,
    delay: Duration,
) -> Ended {
    let result = match work {
        Work::None | Work::Validate => Ok(()),
        Work::Evaluate(version) => evaluate(coordinator, input, version).await,
        Work::Rollout(version) => coordinator.rollouts(input).run(Some(version)).await,
        Work::RolloutAhead => coordinator.rollouts(input).run(None).await,
        Work::Prepare { step } => prepare(coordinator, input, step).await,
    };
    match result {
        Ok(()) => Ended::Done,
        Err(error) if error.is_fatal() => {
            fail(coordinator, &error).await;
            Ended::Done
        }
        Err(error) => {
            let (error, seconds) = (crate::error_line(&error), delay.as_secs());
            tracing::error!(error, ?work, seconds, "work failed; retrying after a delay");
            tokio::time::sleep(delay).await;
            Ended::Failed
        }
    }
}

async fn evaluate(
    coordinator: &Coordinator,
    input: &Arc<Input>,
    version: Version,
) -> Result<(), WorkError> {
    let (beside, suites) = coordinator
        .run
        .read(|run| (run.evaluates_beside(version), run.suites_of_evaluation(version)))
        .await;
    let metrics = coordinator.evaluator(input).run(version, beside, &suites).await?;
    for (suite, own) in metrics.by_suite() {
        tracing::info!(
            step = own.step,
            suite,
            sampled = own.sampled,
            greedy = own.greedy,
            rejected = own.rejected,
            seconds = own.seconds,
            "evaluated"
        );
    }
    coordinator.run.change(|run, _| run.evaluated(version.step)).await?;
    if coordinator.evaluation_fleet.is_some() {
        coordinator.prune_evaluation_weights().await;
    }
    Ok(())
}

/// Fixes a supervised batch, which is a pure function of the data. Packing it here reports invalid
/// data before a learner requests the batch.
async fn prepare(
    coordinator: &Coordinator,
    input: &Arc<Input>,
    step: u32,
) -> Result<(), WorkError> {
    let config = Arc::clone(&coordinator.config);
    crate::batches::supervised(config, Arc::clone(input), step).await?;
    let batch = FixedBatch { step, ..FixedBatch::default() };
    coordinator.journal.call(move |journal| journal.fix_batch(&batch)).await?;
    Ok(coordinator.run.change(|run, _| run.batch_fixed(step)).await?)
}

/// The failure of a run with unusable input.
pub fn input_failure(error: &(dyn std::error::Error + 'static)) -> LearnerFailure {
    let message = crate::error_line(error);
    tracing::error!(reason = COORDINATOR_INPUT, "{message}");
    LearnerFailure {
        reason: COORDINATOR_INPUT.to_owned(),
        message,
        supervisor: None,
        exit_code: None,
    }
}

/// Fails the run.
pub async fn fail(coordinator: &Coordinator, error: &WorkError) {
    let reason = match error {
        WorkError::Verifier(RewardError::Unavailable { .. }) => REWARD_REASON,
        WorkError::Panicked(_) => PANIC_REASON,
        _ => COORDINATOR_INPUT,
    };
    let failure = LearnerFailure { reason: reason.to_owned(), ..input_failure(error) };
    let mut wait = RETRY;
    while let Err(error) = coordinator.run.change(|run, _| run.fail(failure.clone())).await {
        tracing::error!(
            error = %crate::error_line(&error),
            "failed to record the failure; retrying"
        );
        tokio::time::sleep(wait).await;
        wait = wait.saturating_mul(2).min(MAX_RETRY);
    }
}
