//! Incidents: disruptions of pods, each with its cause and what happens next. Derived from states,
//! so a missed event is not a missed incident.

use rljob_crds::names::{
    INCIDENT_DELETED, INCIDENT_ENDED_BY_KUBELET, INCIDENT_ENGINE_HUNG, INCIDENT_ENGINE_INCOMPLETE,
    INCIDENT_EVICTED, INCIDENT_GPU_FAULT, INCIDENT_NODE_GONE, INCIDENT_NODE_NOT_READY,
    INCIDENT_NODE_TAINTED, INCIDENT_POD_LOST, INCIDENT_PREEMPTED, INCIDENT_VANISHED,
};
use rljob_crds::status::Incident;
use rljob_protocol::status::{HUNG_SECONDS, SupervisorState};

use super::facts::{Cause, PodFacts};
use super::plan::{Removal, RemovalReason};
use super::vanished::SeenPod;

const RECREATED: &str = "its StatefulSet will recreate it; not counted as a restart";

/// The incidents of existing pods, some of which are about to be deleted, and of vanished ones.
pub fn incidents(pods: &[PodFacts], removals: &[Removal], vanished: &[SeenPod]) -> Vec<Incident> {
    let existing = pods.iter().filter_map(|pod| {
        let removal = removals.iter().find(|removal| removal.uid == pod.uid);
        let (reason, message) = describe(pod, removal.map(|removal| removal.reason))?;
        Some(incident(reason, &message, &pod.name, &pod.uid, pod.node.as_ref()))
    });
    let vanished = vanished.iter().map(|pod| {
        let message = format!("disappeared without a recorded deletion; {RECREATED}");
        incident(INCIDENT_VANISHED, &message, &pod.name, &pod.uid, pod.node.as_ref())
    });
    existing.chain(vanished).collect()
}

/// Faults of GPUs that supervisors report, of pods without another incident: a pod has one.
pub fn gpu_faults<'a>(
    pods: &[PodFacts],
    supervisors: impl Iterator<Item = &'a SupervisorState>,
    others: &[Incident],
) -> Vec<Incident> {
    let of_pod = |supervisor: &SupervisorState| {
        let (uid, fault) = (supervisor.uid.as_ref()?, supervisor.gpu_fault.as_ref()?);
        let pod = pods.iter().find(|pod| pod.uid == *uid)?;
        let is_known = others.iter().any(|incident| incident.uid == *uid);
        let message = format!("has a faulty GPU: {fault}");
        let incident =
            || incident(INCIDENT_GPU_FAULT, &message, &pod.name, &pod.uid, pod.node.as_ref());
        (!is_known).then(incident)
    };
    supervisors.filter_map(of_pod).collect()
}

fn incident(reason: &str, message: &str, name: &str, uid: &str, node: Option<&String>) -> Incident {
    let place = node.map(|node| format!(" on {node}")).unwrap_or_default();
    Incident {
        reason: reason.to_owned(),
        message: format!("pod {name}{place} {message}"),
        pod: name.to_owned(),
        uid: uid.to_owned(),
        node: node.cloned(),
        time: None,
    }
}

fn describe(pod: &PodFacts, removal: Option<RemovalReason>) -> Option<(&'static str, String)> {
    if removal == Some(RemovalReason::Hung) {
        let message = format!(
            "hangs: it has not answered its coordinator for {HUNG_SECONDS} s, or generates \
             nothing, although its container is running; the pod is deleted; {RECREATED}"
        );
        return Some((INCIDENT_ENGINE_HUNG, message));
    }
    if let Some(deletion) = pod.deletion.filter(|_| removal == Some(RemovalReason::Lost)) {
        let next = if pod.wanted { RECREATED } else { "not counted as a restart" };
        let message = format!(
            "is stuck in Terminating since {:.0}; it is deleted by force; {next}",
            deletion.requested_at
        );
        return Some((INCIDENT_POD_LOST, message));
    }
    if !pod.wanted {
        return None;
    }
    if pod.unresponsive {
        let message = "is unresponsive: its node is not ready; \
            unless the node recovers, the pod is replaced";
        return Some((INCIDENT_NODE_NOT_READY, message.to_owned()));
    }
    let (reason, message) = if let Some(cause) = &pod.disruption {
        disruption(cause)
    } else if let Some(cause) = pod.failed.as_ref().filter(|cause| !ended_by_deletion(pod, cause)) {
        terminated_by_kubelet(cause)
    } else if removal == Some(RemovalReason::Incomplete) {
        let message = "belongs to an engine that lost a pod or a container; \
            all pods of the engine are deleted";
        (INCIDENT_ENGINE_INCOMPLETE, message.to_owned())
    } else {
        pod.deletion.map(|_| (INCIDENT_DELETED, "was deleted".to_owned()))?
    };
    Some((reason, format!("{message}; {RECREATED}")))
}

/// Whether a pod that ended without a cause did so because it was deleted: its containers exit with
/// the code of the signal.
fn ended_by_deletion(pod: &PodFacts, cause: &Cause) -> bool {
    pod.deletion.is_some() && text(cause).is_empty()
}

fn disruption(cause: &Cause) -> (&'static str, String) {
    match cause.reason.as_str() {
        "EvictionByEvictionAPI" => (INCIDENT_EVICTED, "was evicted".to_owned()),
        "PreemptionByScheduler" => (INCIDENT_PREEMPTED, format!("was preempted: {}", text(cause))),
        "DeletionByTaintManager" => {
            (INCIDENT_NODE_TAINTED, "was deleted because of a taint on its node".to_owned())
        }
        "DeletionByPodGC" => {
            (INCIDENT_NODE_GONE, "was deleted because its node no longer exists".to_owned())
        }
        _ => terminated_by_kubelet(cause),
    }
}

fn terminated_by_kubelet(cause: &Cause) -> (&'static str, String) {
    (INCIDENT_ENDED_BY_KUBELET, format!("was terminated by its kubelet: {}", text(cause)))
}

/// The message, or the reason where it is empty.
fn text(cause: &Cause) -> &str {
    if cause.message.is_empty() { &cause.reason } else { &cause.message }
}

#[cfg(test)]
mod tests {
    use rljob_crds::failure_policy::FailurePolicy;
    use rljob_protocol::gpu_fault::GpuFault;

    use super::super::plan;
    use super::super::test_support::{inference_of, pod, terminating};
    use super::*;
    use crate::decide::test_support::at;
    use crate::desired::Role;

    fn reported(pod: PodFacts) -> Option<(String, String)> {
        let pods = [pod];
        incidents(
            &pods,
            &plan(&pods, inference_of(1), &[], &FailurePolicy::default(), at(10)).removals,
            &[],
        )
        .pop()
        .map(|incident| (incident.reason, incident.message))
    }

    fn disrupted(reason: &str, message: &str) -> PodFacts {
        let cause = Cause { reason: reason.to_owned(), message: message.to_owned() };
        PodFacts { disruption: Some(cause), ..terminating(pod("sums-trainer-0"), 9, 30) }
    }

    #[test]
    fn each_disruption_has_a_reason_and_states_what_happens_next() {
        let healthy = || pod("sums-trainer-0");
        let deleted = || terminating(healthy(), 9, 30);
        let stuck =
            |wanted| PodFacts { unresponsive: true, wanted, ..terminating(healthy(), 0, 30) };
        let failed = Cause { reason: "Evicted".to_owned(), message: String::new() };
        let recreated = |message: &str| {
            format!("{message}; its StatefulSet will recreate it; not counted as a restart")
        };
        let lost = "is stuck in Terminating since 2027-01-15T08:00:00Z; it is deleted by force";
        for (pod, expected) in [
            (healthy(), None),
            (deleted(), Some(("Deleted", recreated("was deleted")))),
            (PodFacts { wanted: false, ..deleted() }, None),
            (
                disrupted("EvictionByEvictionAPI", "Eviction API: evicting"),
                Some(("Evicted", recreated("was evicted"))),
            ),
            (
                disrupted("PreemptionByScheduler", "a higher priority"),
                Some(("Preempted", recreated("was preempted: a higher priority"))),
            ),
            (
                disrupted("DeletionByTaintManager", ""),
                Some(("NodeTainted", recreated("was deleted because of a taint on its node"))),
            ),
            (
                disrupted("DeletionByPodGC", ""),
                Some(("NodeGone", recreated("was deleted because its node no longer exists"))),
            ),
            (
                PodFacts { deletion: None, ..disrupted("TerminationByKubelet", "low on memory") },
                Some(("EndedByKubelet", recreated("was terminated by its kubelet: low on memory"))),
            ),
            (
                PodFacts { failed: Some(failed), ..healthy() },
                Some(("EndedByKubelet", recreated("was terminated by its kubelet: Evicted"))),
            ),
            (
                PodFacts { unresponsive: true, ..healthy() },
                Some((
                    "NodeNotReady",
                    "is unresponsive: its node is not ready; \
                     unless the node recovers, the pod is replaced"
                        .to_owned(),
                )),
            ),
            (stuck(true), Some(("PodLost", recreated(lost)))),
            (stuck(false), Some(("PodLost", format!("{lost}; not counted as a restart")))),
        ] {
            let expected = expected.map(|(reason, message)| {
                (reason.to_owned(), format!("pod sums-trainer-0 on node-2 {message}"))
            });
            assert_eq!(reported(pod.clone()), expected, "{pod:?}");
        }
    }

    #[test]
    fn a_pod_that_ends_because_it_was_deleted_was_not_terminated_by_its_kubelet() {
        let failed = Some(Cause { reason: String::new(), message: String::new() });
        let pod = PodFacts { failed, ..terminating(pod("sums-trainer-0"), 9, 30) };
        assert_eq!(reported(pod).map(|(reason, _)| reason).as_deref(), Some("Deleted"));
    }

    #[test]
    fn the_newest_fault_of_a_gpu_is_an_incident_of_its_pod_unless_it_has_another() {
        let pods = [pod("sums-trainer-0"), pod("sums-trainer-1")];
        let supervisor = |name: &str, uid: Option<&str>, xid| SupervisorState {
            name: name.to_owned(),
            alive: true,
            learners: 1,
            uid: uid.map(str::to_owned),
            gpu_fault: Some(GpuFault { number: 2, gpu: "GPU-8f2e".to_owned(), xid }),
        };
        let supervisors = [
            supervisor("sums-trainer-0", Some(&pods[0].uid), Some(94)),
            supervisor("sums-trainer-1", Some("of an earlier pod"), Some(79)),
            supervisor("trainer-2", None, Some(79)),
        ];
        let found = gpu_faults(&pods, supervisors.iter(), &[]);
        let found: Vec<_> =
            found.iter().map(|found| (found.reason.as_str(), found.message.as_str())).collect();
        let message = "pod sums-trainer-0 on node-2 has a faulty GPU: GPU GPU-8f2e reported Xid \
            94, a contained memory error: only the process on it is affected, and restarts; reset \
            the GPU when its jobs have ended";
        assert_eq!(found, [("GpuFault", message)]);
        let evicted = incident("Evicted", "was evicted", "sums-trainer-0", &pods[0].uid, None);
        assert_eq!(gpu_faults(&pods, supervisors.iter(), &[evicted]), []);
    }

    #[test]
    fn a_hung_engine_is_reported_before_it_is_deleted() {
        let engine = pod("sums-inference-0");
        let removal = Removal {
            name: engine.name.clone(),
            uid: engine.uid.clone(),
            resource_version: engine.resource_version.clone(),
            reason: RemovalReason::Hung,
        };
        let incident = incidents(&[engine], &[removal], &[]).pop().unwrap();
        let message = "pod sums-inference-0 on node-2 hangs: it has not answered its coordinator \
            for 20 s, or generates nothing, although its container is running; the pod is \
            deleted; its StatefulSet will recreate it; not counted as a restart";
        assert_eq!((incident.reason.as_str(), incident.message.as_str()), ("EngineHung", message));
    }

    #[test]
    fn a_pod_is_reported_before_it_is_replaced_with_another_of_its_engine() {
        let engine = pod("sums-inference-0");
        let removal = Removal {
            name: engine.name.clone(),
            uid: engine.uid.clone(),
            resource_version: engine.resource_version.clone(),
            reason: RemovalReason::Incomplete,
        };
        let incident = incidents(&[engine], &[removal], &[]).pop().unwrap();
        let message = "pod sums-inference-0 on node-2 belongs to an engine that lost a pod or a \
            container; all pods of the engine are deleted; its StatefulSet will recreate it; not \
            counted as a restart";
        let found = (incident.reason.as_str(), incident.message.as_str());
        assert_eq!(found, ("EngineIncomplete", message));
    }

    #[test]
    fn a_vanished_pod_is_reported_by_name_and_node() {
        let seen = SeenPod {
            role: Role::Inference,
            ordinal: 1,
            name: "sums-inference-1".to_owned(),
            uid: "u1".to_owned(),
            node: Some("node-1".to_owned()),
        };
        let message = "pod sums-inference-1 on node-1 disappeared without a recorded deletion; \
            its StatefulSet will recreate it; not counted as a restart";
        let expected = Incident {
            reason: "Vanished".to_owned(),
            message: message.to_owned(),
            pod: "sums-inference-1".to_owned(),
            uid: "u1".to_owned(),
            node: Some("node-1".to_owned()),
            time: None,
        };
        assert_eq!(incidents(&[], &[], &[seen]), [expected]);
    }
}
