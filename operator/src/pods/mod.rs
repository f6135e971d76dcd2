//! A job's pods as plain facts, and what their states ask for. Pure: [`crate::tend`] does what is
//! planned here, after the status says so.
//!
//! ```text
//!  Pod ──▶ PodFacts ─┬─▶ lost, hung ───────▶ Plan ──▶ tend: DELETE, PATCH pods/status
//!                    ├─▶ gate ─────────────────┘
//!  coordinator's ────┤
//!  EngineStates      └─▶ incidents, exits ─▶ status, events
//! ```
//!
//! What a pod's going means for the run is not decided here: engines leave the list, the
//! coordinator restarts learners, a new coordinator gets an epoch.

use std::time::Duration;

use jiff::Timestamp;
use rljob_crds::status::{Failure, Incident};
use rljob_protocol::status::EngineState;

use crate::decide::Exit;

mod exits;
mod facts;
mod gate;
mod hung;
mod incidents;
mod lost;
mod seen;

pub use exits::End;
pub use facts::{Cause, Container, Deletion, PodFacts, is_up, ordinal, read};
pub use gate::{Gate, GateChange};
pub use hung::HUNG_SECONDS;
pub use seen::{Gone, LastSeen};

/// What is to be done to pods now, and when to look again.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// Pods to remove.
    pub removals: Vec<Removal>,
    /// Readiness gates to open or close.
    pub gates: Vec<GateChange>,
    /// When time alone changes the plan.
    pub next: Option<Timestamp>,
}

/// A pod to remove, if it is still as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version of it that was seen.
    pub resource_version: Option<String>,
    /// Why.
    pub because: Because,
}

/// Why a pod is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// It is to go, and nobody ends it.
    Lost,
    /// Its engine hangs.
    Hung,
}

impl Because {
    /// Seconds that its kubelet has to end it; 0 asks no kubelet. What hangs does not hear SIGTERM.
    pub fn grace_seconds(self) -> u32 {
        match self {
            Self::Lost => 0,
            Self::Hung => 1,
        }
    }
}

impl Plan {
    /// How long nothing changes by time alone.
    pub fn wait(&self, now: Timestamp) -> Option<Duration> {
        self.next.map(|next| Duration::try_from(next.duration_since(now)).unwrap_or_default())
    }
}

/// What the pods' states ask for, and what their coordinator says of its engines.
pub fn plan(pods: &[PodFacts], engines: &[EngineState], now: Timestamp) -> Plan {
    let (hung, next_hung) = hung::hung(pods, engines, now);
    let (gates, next_gate) = gate::changes(pods, engines, now);
    let (lost, waiting): (Vec<_>, Vec<_>) = pods
        .iter()
        .filter_map(|pod| Some((pod, lost::due(pod)?)))
        .partition(|(_, due)| now >= *due);
    let lost = lost.into_iter().map(|(pod, _)| removal(pod, Because::Lost));
    let removals = lost.chain(hung.into_iter().map(|pod| removal(pod, Because::Hung))).collect();
    let next = waiting.into_iter().map(|(_, due)| due).chain(next_hung).chain(next_gate).min();
    Plan { removals, gates, next }
}

fn removal(pod: &PodFacts, because: Because) -> Removal {
    Removal {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        resource_version: pod.resource_version.clone(),
        because,
    }
}

fn earliest(one: Option<Timestamp>, other: Timestamp) -> Timestamp {
    one.map_or(other, |one| one.min(other))
}

/// What is happening to the pods, with what is planned for them, and to those that are gone.
pub fn incidents(pods: &[PodFacts], plan: &Plan, gone: &[Gone]) -> Vec<Incident> {
    incidents::incidents(pods, &plan.removals, gone)
}

/// Ends of processes that nobody asked for, of each container its newest.
pub fn exits(pods: &[PodFacts]) -> Vec<Exit> {
    exits::all(pods)
}

/// The newest of them, for people.
pub fn exit(pods: &[PodFacts]) -> Option<Failure> {
    exits::newest(pods)
}

/// A pod that is well, for the policies' tests.
#[cfg(test)]
pub(crate) mod test_support {
    use super::{Deletion, PodFacts};
    use crate::decide::test_support::at;
    use crate::desired::Role;

    /// By its name, as in `sums-trainer-0`.
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
            silent: false,
            up_since: Some(at(-100)),
            container: None,
            end: None,
            gate: None,
            disruption: None,
            failed: None,
        }
    }

    pub fn asked_to_go(pod: PodFacts, second: i64, grace: i64) -> PodFacts {
        PodFacts {
            deletion: Some(Deletion { asked: at(second), due: at(second + grace) }),
            up_since: None,
            ..pod
        }
    }
}

#[cfg(test)]
mod tests {
    use super::test_support::{asked_to_go, pod};
    use super::*;
    use crate::decide::test_support::at;

    #[test]
    fn pods_that_are_overdue_are_removed_by_uid_and_version_and_the_next_look_is_when_another_is() {
        let pods = [
            pod("sums-coordinator-0"),
            asked_to_go(pod("sums-inference-0"), 0, 10),
            asked_to_go(pod("sums-trainer-0"), 5, 10),
            asked_to_go(pod("sums-trainer-1"), 3, 10),
        ];
        let removal = Removal {
            name: "sums-inference-0".to_owned(),
            uid: "uid of sums-inference-0".to_owned(),
            resource_version: Some("7".to_owned()),
            because: Because::Lost,
        };
        assert_eq!(
            plan(&pods, &[], at(30)),
            Plan { removals: vec![removal], gates: vec![], next: Some(at(33)) }
        );
        assert_eq!(plan(&pods, &[], at(30)).wait(at(30)), Some(Duration::from_secs(3)));
        assert_eq!(plan(&pods, &[], at(29)), Plan { next: Some(at(30)), ..Plan::default() });
        assert_eq!(plan(&pods[..1], &[], at(30)), Plan::default());
    }
}
