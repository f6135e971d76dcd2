//! Errors of rollouts, evaluations and supervised batches, and which of them fail the run.

use crate::input::InputError;
use crate::pack::batch::SampleError;
use crate::persistence::journal::shared::SharedJournalError;
use crate::reward::RewardError;
use crate::rollout::agent::failure::AgentFailure;
use tokio::task::JoinError;

/// Failed work.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error("the spec has no evaluation data")]
    NoEvaluationData,
    #[error(transparent)]
    Verifier(#[from] RewardError),
    #[error(
        "the program of rollout.workflow.agent failed for {samples} samples in a row: fix it and \
         resume the job; last failure"
    )]
    Agent { samples: u32, source: AgentFailure },
    #[error(
        "all samples of the evaluation of step {step} were rejected: the coordinator's log has the \
         causes; one of them is: {cause}"
    )]
    AllRejected { step: u32, cause: String },
    #[error(
        "{rejected} of the newest {of} samples were rejected, more than \
         rollout.maxRejectedShare = {max_share}: mend what rejects them, or raise the share, and \
         run the job again; the last cause is: {cause}"
    )]
    TooManyRejected { rejected: usize, of: usize, max_share: f64, cause: String },
    #[error(transparent)]
    Journal(#[from] SharedJournalError),
    #[error("failed to write sampling parameters as JSON")]
    Json(#[from] serde_json::Error),
    /// The process is shutting down.
    #[error("the work was interrupted")]
    Interrupted,
    /// A defect of the coordinator. The source has the message of the panic.
    #[error("the coordinator has a defect: report it with this message")]
    Panicked(#[source] JoinError),
}

/// Tells a panic from cancellation.
impl From<JoinError> for WorkError {
    fn from(error: JoinError) -> Self {
        if error.is_panic() { Self::Panicked(error) } else { Self::Interrupted }
    }
}

impl WorkError {
    /// Whether the run fails. Other errors are retried.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Journal(_) | Self::Interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::WorkError;

    #[tokio::test]
    async fn a_panic_of_blocking_work_fails_the_run_with_its_message() {
        let panicked = tokio::task::spawn_blocking(|| panic!("index 7 of 3")).await;
        let error = WorkError::from(panicked.unwrap_err());
        assert!(error.is_fatal());
        let line = crate::error_line(&error);
        assert!(line.starts_with("the coordinator has a defect: "), "{line}");
        assert!(line.ends_with("panicked with message \"index 7 of 3\""), "{line}");
    }

    #[tokio::test]
    async fn cancelled_work_is_retried() {
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        assert!(!WorkError::from(task.await.unwrap_err()).is_fatal());
    }
}
