//! Actions on pods: deletions of lost and hung ones, and changes of readiness gates.

use jiff::Timestamp;
use rljob_crds::failure_policy::FailurePolicy;
use rljob_protocol::status::EngineState;

use super::facts::PodFacts;
use super::gate::{self, GateChange};
use super::{hung, lost};

/// Actions on pods that are due now.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PodPlan {
    pub removals: Vec<Removal>,
    pub gates: Vec<GateChange>,
    /// The next time at which time alone changes the plan.
    pub next: Option<Timestamp>,
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
}

impl RemovalReason {
    /// Grace period of the deletion. 0 is a forced deletion, which involves no kubelet. A hung
    /// process does not handle SIGTERM, so 1 s is enough for it.
    pub fn grace_seconds(self) -> u32 {
        match self {
            Self::Lost => 0,
            Self::Hung => 1,
        }
    }
}

/// Plans actions from the pods' states and from the coordinator's report about its engines.
pub fn plan(
    pods: &[PodFacts],
    engines: &[EngineState],
    policy: &FailurePolicy,
    now: Timestamp,
) -> PodPlan {
    let (hung, next_hung) = hung::hung(pods, engines, now);
    let (gates, next_gate) = gate::changes(pods, engines, now);
    let (lost, waiting): (Vec<_>, Vec<_>) = pods
        .iter()
        .filter(|_| policy.force_delete_lost_pods)
        .filter_map(|pod| Some((pod, lost::due(pod)?)))
        .partition(|(_, due)| now >= *due);
    let lost = lost.into_iter().map(|(pod, _)| removal(pod, RemovalReason::Lost));
    let hung = hung.into_iter().map(|pod| removal(pod, RemovalReason::Hung));
    let next = waiting.into_iter().map(|(_, due)| due).chain(next_hung).chain(next_gate).min();
    PodPlan { removals: lost.chain(hung).collect(), gates, next }
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
    use super::super::test_support::{pod, terminating};
    use super::*;
    use crate::decide::test_support::at;

    fn planned(pods: &[PodFacts], now: Timestamp) -> PodPlan {
        plan(pods, &[], &FailurePolicy::default(), now)
    }

    #[test]
    fn lost_pods_stay_if_the_policy_says_so() {
        let policy = FailurePolicy { force_delete_lost_pods: false, ..FailurePolicy::default() };
        let pods = [terminating(pod("sums-inference-0"), 0, 10)];
        assert_eq!(plan(&pods, &[], &policy, at(999)), PodPlan::default());
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
