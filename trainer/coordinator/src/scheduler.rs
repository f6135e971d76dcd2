//! Scheduler: advances the state machine with time and runs the work that it asks for.
//!
//! ```text
//!  tick   every 250 ms, less often after failures: verified checkpoints ─▶ run.tick(now)
//!  work   input ─▶ on every change of the run: blocking work (evaluation, supervised batch)
//!                                              sampling (rollouts), beside it
//!                                              evaluation on separate engines, beside both
//! ```

mod failure;
mod open;
mod ticks;

use std::sync::Arc;
use std::time::Duration;

use rljob_protocol::version::Version;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

pub use self::failure::{PANIC_REASON, REWARD_REASON, fail, input_failure};
use self::failure::{RETRY, retry_delay};
use self::open::{input_opened, open_with_retries};
pub use self::ticks::tick;
use crate::coordinator::Coordinator;
use crate::core::Run;
use crate::core::work::Work;
use crate::input::Input;
use crate::persistence::journal::FixedBatch;
use crate::work_error::WorkError;

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
        let work =
            |run: &Run| [run.work().without_sampling(), run.sampling_work(), run.evaluation_work()];
        let wanted = coordinator.run.read(work).await;
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
