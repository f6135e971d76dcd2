//! Types of decisions: the action of a pass, and the roles that have pods.

use jiff::Timestamp;

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub succeeded: bool,
    /// CamelCase reason, shown in the STATUS column: `Completed` or `Failed`.
    pub reason: String,
    /// One line for the user.
    pub message: String,
}

/// The reason why a run is not training yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Processes are starting, or the coordinator waits for them.
    Starting,
    /// The learners restart after a failure or a loss.
    Restarting,
    /// The storage of the run fails the coordinator's writes.
    Storage,
    /// A verifier is down, and sampling waits for it.
    Reward,
    /// The coordinator answers, and no step is completed.
    NoProgress,
    /// The coordinator does not answer, so nothing is known about the run.
    Unresponsive,
}

/// The action of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The job's first objects cannot be created, or its processes are of releases that do not work
    /// together. The job needs the user, or waits for the deletion of objects of a deleted job.
    /// Nothing is created or changed.
    Stall { reason: &'static str, message: String },
    /// The coordinator of a recorded run has not answered this operator yet. The recorded status
    /// stays until it answers or fails to.
    AskCoordinator,
    /// Every role must exist; the run is not training yet.
    Start(Wait),
    /// Every role must exist; the run is training.
    Run,
    /// Suspended: the coordinator drains until the deadline, which is recorded so that it does not
    /// move.
    Drain { deadline: Timestamp },
    /// Suspended: the run is drained, overdue, or was never started. All pods are deleted.
    Release,
    /// Suspended, and no pod is left.
    Suspended,
    /// The job waits in a queue of Kueue, and no pod is left.
    Queued { message: String },
    /// The run has ended. The outcome is recorded, then all pods are deleted.
    Finish(Outcome),
    /// The run ended in an earlier pass. No pods exist or will exist.
    Finished(Outcome),
    /// `ttlSecondsAfterFinished` has passed. All children are deleted.
    Expired(Outcome),
}

impl Decision {
    /// Whether pods or processes must exist.
    pub fn keeps_running(&self) -> bool {
        match self {
            Self::AskCoordinator | Self::Start(_) | Self::Run | Self::Drain { .. } => true,
            Self::Stall { .. }
            | Self::Release
            | Self::Suspended
            | Self::Queued { .. }
            | Self::Finish(_)
            | Self::Finished(_)
            | Self::Expired(_) => false,
        }
    }

    /// A failed outcome.
    pub(super) fn fail(reason: &str, message: String) -> Self {
        Self::Finish(Outcome { succeeded: false, reason: reason.to_owned(), message })
    }
}

/// The pods of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub roles: WantedRoles,
    /// Number of verifier pods.
    pub verifiers: i32,
}

impl From<WantedRoles> for Wanted {
    /// Without verifier pods.
    fn from(roles: WantedRoles) -> Self {
        Self { roles, verifiers: 0 }
    }
}

/// The roles that have pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedRoles {
    Nothing,
    /// The roles that request no GPUs.
    WithoutGpus,
    Everything,
    /// Every role, with this number of engines. It exceeds the spec until the coordinator has
    /// stopped routing to the engines that will be deleted.
    EverythingWith {
        engines: i32,
    },
}
