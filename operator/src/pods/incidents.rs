//! What is happening to pods, in words for a person: what, why, and what comes next. Read from
//! states, so that a missed event is not a missed incident.

use rljob_crds::names::{
    INCIDENT_DELETED, INCIDENT_ENDED_BY_KUBELET, INCIDENT_ENGINE_HUNG, INCIDENT_EVICTED,
    INCIDENT_NODE_GONE, INCIDENT_NODE_NOT_READY, INCIDENT_NODE_TAINTED, INCIDENT_POD_LOST,
    INCIDENT_PREEMPTED, INCIDENT_VANISHED,
};
use rljob_crds::status::Incident;

use super::{Because, Gone, HUNG_SECONDS, PodFacts, Removal};

const NEXT: &str = "its StatefulSet makes a new one; nothing is counted";

/// What is happening now to the pods that exist, some of which are removed next, and to those that
/// are gone without a word.
pub(super) fn incidents(pods: &[PodFacts], removals: &[Removal], gone: &[Gone]) -> Vec<Incident> {
    let here = pods.iter().filter_map(|pod| {
        let removal = removals.iter().find(|removal| removal.uid == pod.uid);
        let (reason, message) = describe(pod, removal.map(|removal| removal.because))?;
        Some(incident(reason, &message, &pod.name, &pod.uid, pod.node.as_ref()))
    });
    let vanished = gone.iter().map(|gone| {
        incident(
            INCIDENT_VANISHED,
            &format!("is gone without a word; {NEXT}"),
            &gone.name,
            &gone.uid,
            gone.node.as_ref(),
        )
    });
    here.chain(vanished).collect()
}

fn incident(reason: &str, message: &str, name: &str, uid: &str, node: Option<&String>) -> Incident {
    let place = node.map(|node| format!(" on {node}")).unwrap_or_default();
    Incident {
        reason: reason.to_owned(),
        message: format!("{name}{place} {message}"),
        pod: name.to_owned(),
        uid: uid.to_owned(),
        node: node.cloned(),
        time: None,
    }
}

fn describe(pod: &PodFacts, removed: Option<Because>) -> Option<(&'static str, String)> {
    if removed == Some(Because::Hung) {
        let what = format!(
            "has not answered its coordinator for {HUNG_SECONDS} s though its container runs; it is removed, {NEXT}"
        );
        return Some((INCIDENT_ENGINE_HUNG, what));
    }
    if let Some(deletion) = pod.deletion.filter(|_| removed == Some(Because::Lost)) {
        let next = if pod.wanted { NEXT } else { "nothing is counted" };
        return Some((
            INCIDENT_POD_LOST,
            format!(
                "was asked to go at {:.0} and nobody there ends it; it is removed by force, {next}",
                deletion.asked
            ),
        ));
    }
    if !pod.wanted {
        return None;
    }
    if pod.silent {
        return Some((
            INCIDENT_NODE_NOT_READY,
            "is not heard of: its node does not answer; unless it comes back, the pod is replaced"
                .to_owned(),
        ));
    }
    let why = |cause: &super::Cause| {
        if cause.message.is_empty() { cause.reason.clone() } else { cause.message.clone() }
    };
    if let Some(cause) = &pod.disruption {
        let (reason, what) = match cause.reason.as_str() {
            "EvictionByEvictionAPI" => {
                (INCIDENT_EVICTED, "was evicted, as by kubectl drain".to_owned())
            }
            "PreemptionByScheduler" => {
                (INCIDENT_PREEMPTED, format!("was preempted: {}", why(cause)))
            }
            "DeletionByTaintManager" => {
                (INCIDENT_NODE_TAINTED, "was deleted because of a taint of its node".to_owned())
            }
            "DeletionByPodGC" => (
                INCIDENT_NODE_GONE,
                "was deleted because its node is gone from the cluster".to_owned(),
            ),
            _ => (INCIDENT_ENDED_BY_KUBELET, format!("was ended by its kubelet: {}", why(cause))),
        };
        return Some((reason, format!("{what}; {NEXT}")));
    }
    if let Some(cause) = &pod.failed {
        return Some((
            INCIDENT_ENDED_BY_KUBELET,
            format!("was ended by its kubelet: {}; {NEXT}", why(cause)),
        ));
    }
    pod.deletion.map(|_| (INCIDENT_DELETED, format!("was deleted by somebody; {NEXT}")))
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{asked_to_go, pod};
    use super::super::{Cause, plan};
    use super::*;
    use crate::decide::test_support::at;
    use crate::desired::Role;

    fn told(pod: PodFacts) -> Option<(String, String)> {
        let pods = [pod];
        incidents(&pods, &plan(&pods, &[], at(10)).removals, &[])
            .pop()
            .map(|incident| (incident.reason, incident.message))
    }

    fn by(reason: &str, message: &str) -> Cause {
        Cause { reason: reason.to_owned(), message: message.to_owned() }
    }

    #[test]
    fn each_way_in_which_a_pod_is_taken_away_has_a_reason_and_says_what_comes_next() {
        let here = || pod("sums-trainer-0");
        let going = || asked_to_go(here(), 9, 30);
        let next = "its StatefulSet makes a new one; nothing is counted";
        for (pod, expected) in [
            (here(), None),
            (going(), Some(("Deleted", format!("was deleted by somebody; {next}")))),
            (PodFacts { wanted: false, ..going() }, None),
            (
                PodFacts { disruption: Some(by("EvictionByEvictionAPI", "Eviction API: evicting")), ..going() },
                Some(("Evicted", format!("was evicted, as by kubectl drain; {next}"))),
            ),
            (
                PodFacts { disruption: Some(by("PreemptionByScheduler", "a higher priority")), ..going() },
                Some(("Preempted", format!("was preempted: a higher priority; {next}"))),
            ),
            (
                PodFacts { disruption: Some(by("DeletionByTaintManager", "")), ..going() },
                Some(("NodeTainted", format!("was deleted because of a taint of its node; {next}"))),
            ),
            (
                PodFacts { disruption: Some(by("DeletionByPodGC", "")), ..going() },
                Some(("NodeGone", format!("was deleted because its node is gone from the cluster; {next}"))),
            ),
            (
                PodFacts { disruption: Some(by("TerminationByKubelet", "low on memory")), ..here() },
                Some(("EndedByKubelet", format!("was ended by its kubelet: low on memory; {next}"))),
            ),
            (PodFacts { failed: Some(by("Evicted", "")), ..here() }, Some(("EndedByKubelet", format!("was ended by its kubelet: Evicted; {next}")))),
            (
                PodFacts { silent: true, ..here() },
                Some(("NodeNotReady", "is not heard of: its node does not answer; unless it comes back, the pod is replaced".to_owned())),
            ),
            (
                PodFacts { silent: true, ..asked_to_go(here(), 0, 30) },
                Some(("PodLost", format!("was asked to go at 2027-01-15T08:00:00Z and nobody there ends it; it is removed by force, {next}"))),
            ),
            (
                PodFacts { silent: true, wanted: false, ..asked_to_go(here(), 0, 30) },
                Some(("PodLost", "was asked to go at 2027-01-15T08:00:00Z and nobody there ends it; it is removed by force, nothing is counted".to_owned())),
            ),
        ] {
            let expected = expected.map(|(reason, message)| (reason.to_owned(), format!("sums-trainer-0 on node-2 {message}")));
            assert_eq!(told(pod.clone()), expected, "{pod:?}");
        }
    }

    #[test]
    fn an_engine_that_hangs_is_told_before_it_is_removed() {
        let engine = pod("sums-inference-0");
        let removal = Removal {
            name: engine.name.clone(),
            uid: engine.uid.clone(),
            resource_version: engine.resource_version.clone(),
            because: Because::Hung,
        };
        let incident = incidents(&[engine], &[removal], &[]).pop().unwrap();
        let message = "sums-inference-0 on node-2 has not answered its coordinator for 20 s though its container runs; it is removed, its StatefulSet makes a new one; \
                       nothing is counted";
        assert_eq!((incident.reason.as_str(), incident.message.as_str()), ("EngineHung", message));
    }

    #[test]
    fn a_pod_that_vanished_is_told_by_name_and_node() {
        let gone = Gone {
            role: Role::Inference,
            ordinal: 1,
            name: "sums-inference-1".to_owned(),
            uid: "u1".to_owned(),
            node: Some("node-1".to_owned()),
        };
        let expected = Incident {
            reason: "Vanished".to_owned(),
            message: "sums-inference-1 on node-1 is gone without a word; its StatefulSet makes a new one; nothing is counted".to_owned(),
            pod: "sums-inference-1".to_owned(),
            uid: "u1".to_owned(),
            node: Some("node-1".to_owned()),
            time: None,
        };
        assert_eq!(incidents(&[], &[], &[gone]), [expected]);
    }
}
