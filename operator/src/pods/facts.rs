//! What a pod says about itself, as plain facts. Nothing is asked of its node: what nodes'
//! controllers know of a node, they write into its pods.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};
use kube::ResourceExt;
use rljob_crds::names::GATE_WEIGHTS_SYNCED;

use super::exits::End;
use super::gate::Gate;
use crate::cache::Pod;
use crate::decide::Exit;
use crate::desired::Role;

/// A pod of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFacts {
    /// Its role.
    pub role: Role,
    /// Its number in its StatefulSet.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version of it that these facts are from.
    pub resource_version: Option<String>,
    /// The node it is on.
    pub node: Option<String>,
    /// Whether its StatefulSet wants it.
    pub wanted: bool,
    /// Since when it is to go.
    pub deletion: Option<Deletion>,
    /// Whether a kubelet has taken it on.
    pub acknowledged: bool,
    /// Its node's controller has called it not ready, and no kubelet has said anything since.
    pub silent: bool,
    /// Since when its containers are ready; none if they are not.
    pub up_since: Option<Timestamp>,
    /// Its container, if it runs.
    pub container: Option<Container>,
    /// How its container ended the last time.
    pub end: Option<End>,
    /// Its gate, if its template has it.
    pub gate: Option<Gate>,
    /// Who takes it away, and why.
    pub disruption: Option<Cause>,
    /// Why kubelet ended it for good.
    pub failed: Option<Cause>,
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id: another one after each restart.
    pub id: String,
    /// Since when it runs.
    pub since: Timestamp,
}

/// The end that a pod was asked to come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// When it was asked for.
    pub asked: Timestamp,
    /// When its grace period ends.
    pub due: Timestamp,
}

/// A reason and a message of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// CamelCase.
    pub reason: String,
    /// One line; may be empty.
    pub message: String,
}

/// The number at the end of a StatefulSet pod's name.
pub fn ordinal(pod: &Pod) -> u32 {
    pod.name_any().rsplit('-').next().and_then(|ordinal| ordinal.parse().ok()).unwrap_or(u32::MAX)
}

/// Whether its containers are ready on a node that answers. A readiness gate says more than that,
/// and is not asked.
pub fn is_up(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !is_silent(pod) && readiness(pod).is_some()
}

/// The facts of a pod.
pub fn read(pod: &Pod, role: Role, wanted: bool) -> PodFacts {
    let status = pod.status.as_ref();
    let disruption =
        condition(pod, "DisruptionTarget").filter(|condition| condition.status == "True");
    let failed = status.filter(|status| status.phase.as_deref() == Some("Failed"));
    PodFacts {
        role,
        ordinal: ordinal(pod),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        resource_version: pod.resource_version(),
        node: pod.spec.node_name.clone(),
        wanted,
        deletion: deletion(pod),
        acknowledged: status.is_some_and(|status| status.start_time.is_some()),
        silent: is_silent(pod),
        up_since: readiness(pod)
            .filter(|_| is_up(pod))
            .and_then(|ready| Some(ready.last_transition_time.as_ref()?.0)),
        container: container(pod).and_then(running),
        end: container(pod).and_then(|container| last_end(role, pod, container)),
        gate: gate(pod),
        disruption: disruption
            .map(|condition| cause(condition.reason.as_deref(), condition.message.as_deref())),
        failed: failed.map(|status| cause(status.reason.as_deref(), status.message.as_deref())),
    }
}

/// The condition that says that the containers are ready, if it does.
fn readiness(pod: &Pod) -> Option<&PodCondition> {
    let gated = !pod.spec.readiness_gates.is_empty();
    condition(pod, if gated { "ContainersReady" } else { "Ready" })
        .filter(|condition| condition.status == "True")
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

fn running(status: &ContainerStatus) -> Option<Container> {
    let running = status.state.as_ref()?.running.as_ref()?;
    Some(Container { id: status.container_id.clone()?, since: running.started_at.as_ref()?.0 })
}

fn last_end(role: Role, pod: &Pod, status: &ContainerStatus) -> Option<End> {
    let ends = [&status.state, &status.last_state]
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref());
    let end = ends.into_iter().next()?;
    let exit = Exit {
        role: role.into(),
        name: pod.name_any(),
        reason: end.reason.clone().unwrap_or_default(),
        exit_code: end.exit_code,
        message: end.message.clone().unwrap_or_default(),
    };
    Some(End { exit, at: end.finished_at.as_ref()?.0, restarts: status.restart_count })
}

fn gate(pod: &Pod) -> Option<Gate> {
    pod.spec.readiness_gates.iter().find(|gate| gate.condition_type == GATE_WEIGHTS_SYNCED)?;
    let stands = condition(pod, GATE_WEIGHTS_SYNCED);
    Some(stands.map_or_else(Gate::default, |gate| Gate {
        open: gate.status == "True",
        message: gate.message.clone().unwrap_or_default(),
    }))
}

/// The node lifecycle controller sets Ready to False and leaves the reason as it was, which is none
/// for a pod that was ready. A kubelet always gives a reason.
fn is_silent(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| {
        ready.status == "False" && ready.reason.as_deref().unwrap_or_default().is_empty()
    })
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
}

fn cause(reason: Option<&str>, message: Option<&str>) -> Cause {
    Cause {
        reason: reason.unwrap_or_default().to_owned(),
        message: message.unwrap_or_default().to_owned(),
    }
}

/// A pod's `deletionTimestamp` is the end of its grace period.
fn deletion(pod: &Pod) -> Option<Deletion> {
    let due = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    Some(Deletion { asked: due.saturating_sub(grace).unwrap_or(due), due })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodReadinessGate;
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: &Value, status: &Value) -> Pod {
        let mut all = json!({ "metadata": { "name": "sums-trainer-3", "uid": "u", "resourceVersion": "7" }, "spec": { "containers": [], "nodeName": "node-2" }, "status": status });
        all["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn ready(status: &str, reason: &Value) -> Value {
        json!({ "startTime": "2027-01-15T07:00:00Z", "conditions": [{ "type": "Ready", "status": status, "reason": reason, "lastTransitionTime": "2027-01-15T07:01:00Z" }] })
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn healthy() -> PodFacts {
        PodFacts {
            role: Role::Trainer,
            ordinal: 3,
            name: "sums-trainer-3".to_owned(),
            uid: "u".to_owned(),
            resource_version: Some("7".to_owned()),
            node: Some("node-2".to_owned()),
            wanted: true,
            deletion: None,
            acknowledged: true,
            silent: false,
            up_since: Some(at("2027-01-15T07:01:00Z")),
            container: None,
            end: None,
            gate: None,
            disruption: None,
            failed: None,
        }
    }

    #[test]
    fn a_pod_is_read_whole() {
        let (nothing, none) = (json!({}), json!(null));
        assert_eq!(read(&pod(&nothing, &ready("True", &none)), Role::Trainer, true), healthy());
        assert_eq!(
            read(
                &pod(&nothing, &ready("False", &json!("ContainersNotReady"))),
                Role::Trainer,
                true
            ),
            PodFacts { up_since: None, ..healthy() }
        );
        let lost = PodFacts { up_since: None, silent: true, ..healthy() };
        assert_eq!(
            read(&pod(&nothing, &ready("False", &none)), Role::Trainer, true),
            lost,
            "no kubelet leaves the reason out"
        );
        let new = PodFacts { up_since: None, acknowledged: false, wanted: false, ..healthy() };
        assert_eq!(read(&pod(&nothing, &nothing), Role::Trainer, false), new);
    }

    #[test]
    fn deletion_disruption_and_failure_are_read_in_kuberneteses_own_words() {
        let metadata = json!({ "deletionTimestamp": "2027-01-15T08:00:30Z", "deletionGracePeriodSeconds": 30 });
        let target = json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting" });
        let status = json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory", "conditions": [target] });
        let expected = PodFacts {
            deletion: Some(Deletion {
                asked: at("2027-01-15T08:00:00Z"),
                due: at("2027-01-15T08:00:30Z"),
            }),
            acknowledged: false,
            up_since: None,
            disruption: Some(cause(Some("EvictionByEvictionAPI"), Some("Eviction API: evicting"))),
            failed: Some(cause(Some("Evicted"), Some("low on memory"))),
            ..healthy()
        };
        assert_eq!(read(&pod(&metadata, &status), Role::Trainer, true), expected);
    }

    #[test]
    fn a_gate_that_is_closed_does_not_make_an_engine_unready() {
        let mut status = ready("False", &json!("ReadinessGatesNotReady"));
        status["conditions"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "type": "ContainersReady", "status": "True" }));
        let mut engine = pod(&json!({}), &status);
        assert!(!is_up(&engine));
        engine.spec.readiness_gates = vec![PodReadinessGate { condition_type: "a/b".to_owned() }];
        assert!(is_up(&engine));
        assert_eq!(read(&engine, Role::Inference, true).gate, None, "not ours");
    }

    #[test]
    fn an_engines_container_its_last_end_and_its_gate_are_read() {
        let gate =
            json!({ "type": "rljob.dev/weights-synced", "status": "True", "message": "for c2" });
        let status = json!({ "conditions": [gate], "containerStatuses": [{ "name": "inference", "image": "", "imageID": "", "ready": true, "restartCount": 3,
            "containerID": "c2", "state": { "running": { "startedAt": "2027-01-15T08:00:00Z" } },
            "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled", "message": "words", "finishedAt": "2027-01-15T07:59:58Z" } } }] });
        let mut engine = pod(&json!({}), &status);
        engine.spec.readiness_gates =
            vec![PodReadinessGate { condition_type: GATE_WEIGHTS_SYNCED.to_owned() }];
        let facts = read(&engine, Role::Inference, true);
        assert_eq!(
            facts.container,
            Some(Container { id: "c2".to_owned(), since: at("2027-01-15T08:00:00Z") })
        );
        let (name, reason, message) =
            ("sums-trainer-3".to_owned(), "OOMKilled".to_owned(), "words".to_owned());
        let exit = Exit { role: Role::Inference.into(), name, reason, exit_code: 137, message };
        assert_eq!(facts.end, Some(End { exit, at: at("2027-01-15T07:59:58Z"), restarts: 3 }));
        assert_eq!(facts.gate, Some(Gate { open: true, message: "for c2".to_owned() }));
    }
}
