//! Rejected requests.

/// A rejected request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The sender was replaced (HTTP 409).
    #[error(
        "{what} {sent} is not the current one ({current}): the sender was replaced and must stop"
    )]
    Fenced {
        /// `attempt` or `epoch`.
        what: &'static str,
        /// The sender's number.
        sent: u64,
        /// The current number.
        current: u64,
    },
    /// The pod of the supervisor was replaced (HTTP 409).
    #[error(
        "the supervisor {0} was replaced by another process of its name: its learners must stop"
    )]
    Replaced(String),
    /// The request is invalid in this state (HTTP 400).
    #[error("{0}")]
    Invalid(String),
}
