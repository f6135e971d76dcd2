//! Delays of retries, and errors that fail the run.

use std::time::Duration;

use rljob_protocol::status::{COORDINATOR_INPUT, LearnerFailure};

use crate::coordinator::Coordinator;
use crate::reward::RewardError;
use crate::work_error::WorkError;

/// First and longest delay before failed work is retried.
pub const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);
/// Failure reason of a defect of the coordinator.
pub const PANIC_REASON: &str = "CoordinatorPanicked";
/// Failure reason of a verifier that was down for too long.
pub const REWARD_REASON: &str = "RewardUnavailable";

/// Delay of a retry after a number of consecutive failures: 1, 2, 4, … 30 seconds.
pub fn retry_delay(failures: u32) -> Duration {
    RETRY.saturating_mul(1 << failures.min(5)).min(MAX_RETRY)
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
