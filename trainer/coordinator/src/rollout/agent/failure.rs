//! Failures of the program of an agent.

use std::time::Duration;

use crate::reward::VerifierError;

/// Why a try of a sample has no result.
#[derive(Debug, thiserror::Error)]
pub enum AgentFailure {
    #[error("the program of the agent failed")]
    Program(#[source] VerifierError),
    #[error("the program of the agent did not end within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the program of the agent requested no completion")]
    NoCompletion,
    #[error("the program of the agent posted no reward, and the job has no spec.rewards")]
    NoReward,
}

impl AgentFailure {
    /// The failure of a program that ran.
    pub fn of(error: VerifierError) -> Self {
        match error {
            VerifierError::Timeout(limit) => Self::Timeout(limit),
            error => Self::Program(error),
        }
    }

    /// Value of the label `cause` of the metric of rejected samples.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Program(error) => error.kind(),
            Self::Timeout(_) => "timeout",
            Self::NoCompletion => "no_completion",
            Self::NoReward => "no_reward",
        }
    }

    /// Whether no later try can succeed.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Program(error) if error.is_permanent())
    }
}
