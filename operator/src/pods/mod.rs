//! Facts about single pods, and the actions that they require. Pure: [`crate::execute`] performs
//! the actions after the status records them.
//!
//! ```text
//!  Pod ──▶ PodFacts ─┬─▶ lost, hung ───────▶ PodPlan ──▶ DELETE pods, PATCH pods/status
//!                    ├─▶ engines, gate ────────┘
//!  coordinator's ────┤
//!  EngineStates      └─▶ incidents, exits ─▶ status, events
//! ```
//!
//! The consequences for the run are decided elsewhere: engines are removed from the coordinator's
//! list, the coordinator restarts learners, and a new coordinator gets an epoch.

mod engines;
mod exits;
mod facts;
mod gate;
mod hung;
mod incidents;
mod lost;
mod plan;
mod vanished;
mod waiting;

pub use engines::serves;
pub use exits::{failures, failures_since, newest_exit};
pub use facts::{
    Cause, Container, ContainerExit, Deletion, Gate, PodFacts, is_up, ordinal, read, restarts,
};
pub use gate::GateChange;
pub use incidents::{gpu_faults, incidents};
pub use plan::{PodPlan, Removal, RemovalReason, plan};
pub use vanished::{SeenPod, stable, vanished};
pub use waiting::{waiting, warned};

/// A healthy pod, for table tests.
#[cfg(test)]
pub(crate) mod test_support {
    use super::{Deletion, PodFacts};
    use crate::decide::test_support::at;
    use crate::desired::Role;

    /// `name` is `<job>-<role>-<ordinal>`.
    pub fn pod(name: &str) -> PodFacts {
        let mut parts = name.split('-').skip(1);
        PodFacts {
            role: Role::parse(parts.next().unwrap()).unwrap(),
            ordinal: parts.next().unwrap().parse().unwrap(),
            name: name.to_owned(),
            uid: format!("uid of {name}"),
            resource_version: Some("7".to_owned()),
            node: Some("node-2".to_owned()),
            wanted: true,
            deletion: None,
            acknowledged: true,
            unresponsive: false,
            up_since: Some(at(-100)),
            container: None,
            last_exit: None,
            gate: None,
            disruption: None,
            failed: None,
        }
    }

    /// Sizes of engines in a job that has only those of rollouts.
    pub fn inference_of(size: u32) -> impl Fn(Role) -> Option<u32> + Copy {
        move |role| (role == Role::Inference).then_some(size)
    }

    pub fn terminating(pod: PodFacts, second: i64, grace: i64) -> PodFacts {
        PodFacts {
            deletion: Some(Deletion { requested_at: at(second), deadline: at(second + grace) }),
            up_since: None,
            ..pod
        }
    }
}
