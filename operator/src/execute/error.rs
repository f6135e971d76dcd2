//! Errors of side effects, by the kind of side effect: the label of a metric.

use super::apply::ApplyError;
use super::remove::RemoveError;

/// A side effect that failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// An object changed since it was observed.
    #[error("{0}")]
    Conflict(String),
    #[error("failed to write the status")]
    WriteStatus(#[source] Box<kube::Error>),
    #[error("failed to update or delete the Workload of Kueue")]
    WriteWorkload(#[source] Box<kube::Error>),
    #[error("failed to update or delete pod")]
    PodActions(#[source] Box<kube::Error>),
    #[error(transparent)]
    Apply(ApplyError),
    #[error(transparent)]
    Remove(RemoveError),
}

impl From<ApplyError> for ExecuteError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Conflict { .. } => Self::Conflict(error.to_string()),
            error => Self::Apply(error),
        }
    }
}

impl From<RemoveError> for ExecuteError {
    fn from(error: RemoveError) -> Self {
        match error {
            RemoveError::Conflict(..) | RemoveError::Secret(ApplyError::Conflict { .. }) => {
                Self::Conflict(error.to_string())
            }
            error => Self::Remove(error),
        }
    }
}

impl ExecuteError {
    /// The variant, as a metric's label.
    pub fn variant(&self) -> &'static str {
        match self {
            Self::Conflict(_) => "conflict",
            Self::WriteStatus(_) => "write_status",
            Self::WriteWorkload(_) => "write_workload",
            Self::PodActions(_) => "pod_actions",
            Self::Apply(_) => "apply",
            Self::Remove(_) => "remove",
        }
    }
}
