//! Why a pass failed, by the step that failed: a metric's label, and what the wait before the next
//! one rests on.

use crate::apply::ApplyError;
use crate::remove::RemoveError;

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// An object changed since it was read.
    #[error("{0}")]
    Conflict(String),
    /// What exists could not be read.
    #[error("failed to read what exists")]
    Observe(#[source] Box<kube::Error>),
    /// The status could not be written.
    #[error("failed to write the status")]
    WriteStatus(#[source] Box<kube::Error>),
    /// A child could not be applied.
    #[error(transparent)]
    Apply(ApplyError),
    /// A pod could not be removed, or its gate not set.
    #[error("failed to tend to a pod")]
    Tend(#[source] Box<kube::Error>),
    /// A finished job's child could not be removed.
    #[error(transparent)]
    Remove(RemoveError),
}

impl From<ApplyError> for ReconcileError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Conflict { .. } => Self::Conflict(error.to_string()),
            error => Self::Apply(error),
        }
    }
}

impl From<RemoveError> for ReconcileError {
    fn from(error: RemoveError) -> Self {
        match error {
            RemoveError::Conflict(..) | RemoveError::Secret(ApplyError::Conflict { .. }) => {
                Self::Conflict(error.to_string())
            }
            error => Self::Remove(error),
        }
    }
}

impl ReconcileError {
    /// The variant, as a metric's label.
    pub(super) fn variant(&self) -> &'static str {
        match self {
            Self::Conflict(_) => "conflict",
            Self::Observe(_) => "observe",
            Self::WriteStatus(_) => "write_status",
            Self::Apply(_) => "apply",
            Self::Tend(_) => "tend",
            Self::Remove(_) => "remove",
        }
    }
}
