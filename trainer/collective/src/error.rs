//! Error of all operations of this crate.

/// An operation on a store, group or kernel failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to {operation} ({place}): {message}")]
pub struct CollectiveError {
    /// The operation, for example `all-reduce Float [4]`.
    pub operation: String,
    /// Rank and process group, or address of the store.
    pub place: String,
    /// Message of libtorch; Gloo names the peer that disconnected or did not join.
    pub message: String,
}
