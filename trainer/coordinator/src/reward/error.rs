//! Errors of completions without a reward.

use super::verifier::VerifierError;

/// A completion without a reward.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// All tries failed; the sample must be dropped.
    #[error("reward {reward} failed {tries} times for a completion; last error")]
    Rejected { reward: String, tries: u32, source: VerifierError },
    /// The verifier cannot start, or was down for longer than `maxOutageSeconds`; the run must end.
    #[error(
        "reward {reward} is unavailable (for {seconds} s): fix the verifier and resume the job; \
         last error"
    )]
    Unavailable { reward: String, seconds: u64, source: VerifierError },
    #[error("failed to create the verifier of reward {reward}")]
    Create { reward: String, source: Box<dyn std::error::Error + Send + Sync> },
}

impl RewardError {
    /// Kind of the verifier's failure.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Rejected { source, .. } | Self::Unavailable { source, .. } => source.kind(),
            Self::Create { .. } => "create",
        }
    }
}
