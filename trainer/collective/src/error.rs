//! The one error of this crate.

/// An operation on a store, group or kernel failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to {operation} ({place}): {message}")]
pub struct CollectiveError {
    /// What was attempted, `all-reduce [4]`.
    pub operation: String,
    /// Where: the rank and group, or the store's address.
    pub place: String,
    /// The cause, in libtorch's words; Gloo names the peer it lost or waited for.
    pub message: String,
}
