//! Errors of calls to engines.

use std::time::Duration;

use hyper::StatusCode;

use crate::engines::connection::ConnectionError;

/// Route of completions.
pub const GENERATE: &str = "/generate";
/// Deadline of control calls.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(60);
/// Deadline of a call that the engine's scheduler answers between two batches. Calls with a shorter
/// one do not wait for the scheduler.
pub const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("failed to reach the engine at {route}")]
    Unreachable { route: &'static str, source: ConnectionError },
    #[error("the engine answered {route} with {status}: {message}")]
    Rejected {
        route: &'static str,
        status: StatusCode,
        /// Start of the response body.
        message: String,
    },
    #[error("the engine's response to {route} is invalid: {message}")]
    InvalidResponse { route: &'static str, message: String },
    /// The request that the sample shared failed, with the error of another sample.
    #[error("the joint request failed")]
    Joint,
    /// The engine was lost, or a weight update aborted the request.
    #[error("the engine aborted the request: {0}")]
    Aborted(String),
    #[error("the completion was sampled with weights `{found}`, expected {expected}")]
    WrongWeights {
        /// As reported by the engine.
        found: String,
        expected: String,
    },
    #[error(
        "the engine holds {found} at position {position} of `{name}`, the learners sent {expected}"
    )]
    WrongElement {
        /// Hugging Face name.
        name: String,
        /// In a vector, or in the first row of a matrix.
        position: u32,
        expected: f32,
        /// As in the engine's response.
        found: String,
    },
}

impl EngineError {
    /// Whether no process listened at the address. A later response is from a new process.
    pub fn is_connection_refused(&self) -> bool {
        matches!(self, Self::Unreachable { source: ConnectionError::Connect(_), .. })
    }

    /// Whether a call that the scheduler answers exceeded its deadline: the server accepts
    /// requests, but its scheduler is stuck.
    pub fn is_hang(&self) -> bool {
        matches!(self, Self::Unreachable { source: ConnectionError::Deadline(deadline), .. }
            if *deadline >= SCHEDULER_TIMEOUT)
    }

    /// Whether the process must be replaced: it hangs, or holds other weights than it reports.
    pub fn needs_replacement(&self) -> bool {
        self.is_hang() || matches!(self, Self::WrongElement { .. })
    }
}
