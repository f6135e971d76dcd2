//! Inputs and results of the execute step.

use rljob_crds::status::RLJobStatus;

use crate::children::{Child, ChildName};
use crate::pods::PodPlan;
use crate::poll::CoordinatorOrder;
use crate::queue::plan::WorkloadAction;

/// The side effects of a pass.
#[derive(Clone, Debug)]
pub struct Actions {
    pub status: RLJobStatus,
    /// `None` if the pods must not be touched in this pass.
    pub pods: Option<PodPlan>,
    pub children: ChildAction,
    /// Children to delete, because the job needs them no longer.
    pub obsolete: Vec<ChildName>,
    /// Name of the Workload of Kueue, and the action on it.
    pub workload: (String, WorkloadAction),
    pub coordinator: CoordinatorAction,
}

/// The action on the children.
#[derive(Clone, Debug, PartialEq)]
pub enum ChildAction {
    Keep,
    /// Apply the children that differ. `Secrets` says when the Secret is applied.
    Apply(Vec<Child>, Secrets),
    /// Scale the StatefulSets to zero.
    Release,
    /// Delete every child.
    Remove(Vec<Child>),
}

/// When the Secret is applied; it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    /// With any other child that creates pods.
    WithOthers,
    /// Always: a pod waits for a volume that may be the Secret.
    Always,
}

/// The action on the task that talks to the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum CoordinatorAction {
    Keep,
    Send(Box<CoordinatorOrder>),
    /// End the task.
    Forget,
}

/// Results of the side effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Children that were applied or released.
    pub children: usize,
    pub rejection: Rejection,
}

/// Whether the API server rejected a child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rejection {
    #[default]
    None,
    /// Rejected, and recorded by an earlier pass.
    Known,
    /// New, or withdrawn: the next pass must record it.
    Changed,
}
