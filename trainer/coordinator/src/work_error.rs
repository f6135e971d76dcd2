//! Errors of rollouts, evaluations and supervised batches, and which of them fail the run.

use crate::input::InputError;
use crate::pack::batch::SampleError;
use crate::persistence::journal::shared::SharedJournalError;
use crate::reward::RewardError;

/// Failed work.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error("the spec has no reward: set spec.rewards")]
    NoReward,
    #[error("the spec has no evaluation data")]
    NoEvaluationData,
    #[error(transparent)]
    Verifier(#[from] RewardError),
    #[error(
        "the verifier failed on every completion of step {step}: the coordinator's log has the \
            causes"
    )]
    AllRejected { step: u32 },
    #[error(transparent)]
    Journal(#[from] SharedJournalError),
    #[error("failed to write sampling parameters as JSON")]
    Json(#[from] serde_json::Error),
    /// The process is shutting down.
    #[error("the work was interrupted")]
    Interrupted,
}

impl WorkError {
    /// Whether the run fails. Other errors are retried.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Journal(_) | Self::Interrupted)
    }
}
