//! Errors of completions without a reward, or without what follows them.

use super::verifier::VerifierError;

/// A call of a verifier that failed.
#[derive(Debug)]
pub struct FailedCall {
    /// Name and verifier of the reward.
    pub service: String,
    pub source: VerifierError,
}

/// A completion without a reward.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// All tries failed; the sample must be dropped.
    #[error("{service} failed {tries} times for a completion; last error")]
    Rejected { service: String, tries: u32, source: VerifierError },
    /// The service cannot start, or was down for longer than `maxOutageSeconds`; the run must end.
    #[error(
        "{service} is unavailable{}: fix it and run the job again; last error",
        match seconds { 0 => String::new(), seconds => format!(" for {seconds} s") }
    )]
    Unavailable { service: String, seconds: u64, source: VerifierError },
    /// The answers for so many completions in a row were wrong that the run must end.
    #[error(
        "{service} failed for {completions} completions in a row{}: fix it and run the job again; \
         last error",
        row.map_or_else(String::new, |row| format!(", the last one of row {row}"))
    )]
    Faulty {
        service: String,
        completions: u32,
        /// Row of the last completion.
        row: Option<u64>,
        source: VerifierError,
    },
    #[error("failed to create the verifier of reward {reward}")]
    Create { reward: String, source: Box<dyn std::error::Error + Send + Sync> },
}

impl RewardError {
    /// The error of a completion of this row.
    #[must_use]
    pub fn of_row(mut self, of: u64) -> Self {
        if let Self::Faulty { row, .. } = &mut self {
            *row = Some(of);
        }
        self
    }

    /// Whether no later try can succeed.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Rejected { source, .. } | Self::Unavailable { source, .. } => {
                source.is_permanent()
            }
            Self::Faulty { .. } | Self::Create { .. } => true,
        }
    }

    /// Kind of the service's failure.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Rejected { source, .. }
            | Self::Unavailable { source, .. }
            | Self::Faulty { source, .. } => source.kind(),
            Self::Create { .. } => "create",
        }
    }
}
