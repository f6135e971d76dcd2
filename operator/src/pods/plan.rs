//! Actions on pods: deletions of lost and hung ones and of those of incomplete engines, and changes
//! of readiness gates.

use jiff::Timestamp;
use rljob_crds::failure_policy::FailurePolicy;
use rljob_protocol::status::EngineState;

use super::engines::{Engine, engines};
use super::facts::PodFacts;
use super::gate::{self, GateChange};
use super::{hung, lost};
use crate::desired::Role;

/// Actions on pods that are due now.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PodPlan {
    pub removals: Vec<Removal>,
    pub gates: Vec<GateChange>,
    /// The next time at which time alone changes the plan.
    pub next: Option<Timestamp>,
}

impl PodPlan {
    /// Whether the pod is deleted because its engine is incomplete.
    pub fn replaces(&self, uid: &str) -> bool {
        let mut incomplete =
            self.removals.iter().filter(|removal| removal.reason == RemovalReason::Incomplete);
        incomplete.any(|removal| removal.uid == uid)
    }
}

/// A pod to delete, if it has not changed since it was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub name: String,
    pub uid: String,
    pub resource_version: Option<String>,
    pub reason: RemovalReason,
}

/// The reason why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// It is stuck in Terminating.
    Lost,
    /// Its engine hangs.
    Hung,
    /// Another pod of its engine was lost or restarted.
    Incomplete,
}

impl RemovalReason {
    /// Grace period of the deletion. 0 is a forced deletion, which involves no kubelet. A hung
    /// process does not handle SIGTERM, and a rank without its group can finish no request, so 1 s
    /// is enough for them.
    pub fn grace_seconds(self) -> u32 {
        match self {
            Self::Lost => 0,
            Self::Hung | Self::Incomplete => 1,
        }
    }
}

/// Plans actions from the pods' states and from the coordinator's report about its engines.
pub fn plan(
    pods: &[PodFacts],
    pods_per_engine: impl Fn(Role) -> Option<u32>,
    reported: &[EngineState],
    policy: &FailurePolicy,
    now: Timestamp,
) -> PodPlan {
    let engines = engines(pods, pods_per_engine);
    let (hung, next_hung) = hung::hung(pods, reported, now);
    let (gates, next_gate) = gate::changes(&engines, reported, now);
    let incomplete = engines.iter().filter(|engine| engine.is_incomplete());
    let incomplete: Vec<Removal> = incomplete
        .flat_map(Engine::remaining)
        .filter(|pod| pod.wanted && !hung.iter().any(|hung| hung.uid == pod.uid))
        .map(|pod| removal(pod, RemovalReason::Incomplete))
        .collect();
    let (lost, waiting): (Vec<_>, Vec<_>) = pods
        .iter()
        .filter(|_| policy.force_delete_lost_pods)
        .filter_map(|pod| Some((pod, lost::due(pod)?)))
        .partition(|(_, due)| now >= *due);
    let lost = lost.into_iter().map(|(pod, _)| removal(pod, RemovalReason::Lost));
    let hung = hung.into_iter().map(|pod| removal(pod, RemovalReason::Hung));
    let next = waiting.into_iter().map(|(_, due)| due).chain(next_hung).chain(next_gate).min();
    PodPlan { removals: lost.chain(hung).chain(incomplete).collect(), gates, next }
}

fn removal(pod: &PodFacts, reason: RemovalReason) -> Removal {
    Removal {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        resource_version: pod.resource_version.clone(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{inference_of, pod, terminating};
    use super::super::{Container, Gate};
    use super::*;
    use crate::decide::test_support::at;

    fn planned(pods: &[PodFacts], now: Timestamp) -> PodPlan {
        plan(pods, inference_of(1), &[], &FailurePolicy::default(), now)
    }

    #[test]
    fn lost_pods_stay_if_the_policy_says_so() {
        let policy = FailurePolicy { force_delete_lost_pods: false, ..FailurePolicy::default() };
        let pods = [terminating(pod("sums-inference-0"), 0, 10)];
        assert_eq!(plan(&pods, inference_of(1), &[], &policy, at(999)), PodPlan::default());
    }

    #[test]
    fn the_pods_of_an_engine_that_lost_one_are_deleted_together() {
        let member = |ordinal: u32| PodFacts {
            gate: Some(Gate {
                open: true,
                message: format!("containers c{ordinal}, c1 hold weights of the run"),
            }),
            container: Some(Container { id: format!("c{ordinal}"), since: at(0) }),
            ..pod(&format!("sums-inference-{ordinal}"))
        };
        let lost = terminating(member(1), 0, 30);
        let alone = [member(2), member(3)].map(|pod| PodFacts { gate: None, ..pod });
        let pods = [vec![member(0), lost], alone.to_vec()].concat();
        let removal = Removal {
            name: "sums-inference-0".to_owned(),
            uid: "uid of sums-inference-0".to_owned(),
            resource_version: Some("7".to_owned()),
            reason: RemovalReason::Incomplete,
        };
        let plan = |size| plan(&pods, inference_of(size), &[], &FailurePolicy::default(), at(1));
        assert!(plan(2).replaces(&removal.uid));
        assert_eq!((plan(2).removals, removal.reason.grace_seconds()), (vec![removal], 1));
        assert_eq!(plan(1).removals, [], "engines of one pod");
    }

    #[test]
    fn overdue_pods_are_deleted_by_uid_and_version_and_the_plan_names_the_next_deadline() {
        let pods = [
            pod("sums-coordinator-0"),
            terminating(pod("sums-inference-0"), 0, 10),
            terminating(pod("sums-trainer-0"), 5, 10),
            terminating(pod("sums-trainer-1"), 3, 10),
        ];
        let removal = Removal {
            name: "sums-inference-0".to_owned(),
            uid: "uid of sums-inference-0".to_owned(),
            resource_version: Some("7".to_owned()),
            reason: RemovalReason::Lost,
        };
        assert_eq!(
            planned(&pods, at(30)),
            PodPlan { removals: vec![removal], gates: vec![], next: Some(at(33)) }
        );
        assert_eq!(planned(&pods, at(29)), PodPlan { next: Some(at(30)), ..PodPlan::default() });
        assert_eq!(planned(&pods[..1], at(30)), PodPlan::default());
    }
}
