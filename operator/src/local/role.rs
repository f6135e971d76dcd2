//! Roles of the processes of a local run.

use rljob_crds::EnginePurpose;
use rljob_crds::failure_policy::FailureRole;

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Coordinator,
    Engine(EnginePurpose),
    /// A supervisor and its learners.
    Trainer,
    /// The same of a group of `trainer.groups`.
    Group,
}

impl From<Role> for FailureRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Coordinator => Self::Coordinator,
            Role::Engine(EnginePurpose::Rollouts) => Self::Inference,
            Role::Engine(EnginePurpose::Evaluation) => Self::Evaluation,
            Role::Engine(EnginePurpose::Reward) => Self::Reward,
            Role::Engine(EnginePurpose::Teacher) => Self::Teacher,
            Role::Trainer | Role::Group => Self::Trainer,
        }
    }
}
