//! A pod's state as plain facts. Nodes are not read: node controllers write the state of a node
//! into its pods.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};
use kube::ResourceExt;
use rljob_crds::names::GATE_WEIGHTS_SYNCED;

use crate::cache::Pod;
use crate::decide::Exit;
use crate::desired::Role;

/// A pod of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFacts {
    pub role: Role,
    pub ordinal: u32,
    pub name: String,
    pub uid: String,
    pub resource_version: Option<String>,
    pub node: Option<String>,
    /// Whether its StatefulSet wants it.
    pub wanted: bool,
    /// Set while it is terminating.
    pub deletion: Option<Deletion>,
    /// Whether a kubelet has accepted it.
    pub acknowledged: bool,
    /// Whether its node is not ready, and its kubelet has reported nothing since.
    pub unresponsive: bool,
    /// Set while its containers are ready.
    pub up_since: Option<Timestamp>,
    /// Set while its container is running.
    pub container: Option<Container>,
    pub last_exit: Option<ContainerExit>,
    /// Set if its template has the readiness gate.
    pub gate: Option<Gate>,
    /// The cause of a disruption in progress.
    pub disruption: Option<Cause>,
    /// The cause of phase Failed.
    pub failed: Option<Cause>,
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Changes with every restart.
    pub id: String,
    pub since: Timestamp,
}

/// The newest exit of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerExit {
    pub exit: Exit,
    pub at: Timestamp,
    /// Restarts that its kubelet has counted.
    pub restarts: i32,
}

/// State of the readiness gate.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Gate {
    pub open: bool,
    /// Names the container that the state applies to.
    pub message: String,
}

/// A requested deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    pub requested_at: Timestamp,
    /// End of the grace period.
    pub deadline: Timestamp,
}

/// Reason and message of a pod condition or phase.
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

/// Whether its containers are ready on a ready node, whatever its readiness gate says.
pub fn is_up(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !is_unresponsive(pod) && readiness(pod).is_some()
}

/// Reads the facts of a pod.
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
        unresponsive: is_unresponsive(pod),
        up_since: readiness(pod)
            .filter(|_| is_up(pod))
            .and_then(|ready| Some(ready.last_transition_time.as_ref()?.0)),
        container: container(pod, role).and_then(running),
        last_exit: container(pod, role).and_then(|container| last_exit(role, pod, container)),
        gate: gate(pod),
        disruption: disruption
            .map(|condition| cause(condition.reason.as_deref(), condition.message.as_deref())),
        failed: failed.map(|status| cause(status.reason.as_deref(), status.message.as_deref())),
    }
}

/// The true condition that reports the readiness of the containers.
fn readiness(pod: &Pod) -> Option<&PodCondition> {
    let gated = !pod.spec.readiness_gates.is_empty();
    condition(pod, if gated { "ContainersReady" } else { "Ready" })
        .filter(|condition| condition.status == "True")
}

/// The main container. Templates may add sidecars.
fn container(pod: &Pod, role: Role) -> Option<&ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == role.container()).or(statuses.first())
}

/// Restarts of the main container.
pub fn restarts(pod: &Pod, role: Role) -> u32 {
    container(pod, role).map_or(0, |status| status.restart_count.unsigned_abs())
}

fn running(status: &ContainerStatus) -> Option<Container> {
    let running = status.state.as_ref()?.running.as_ref()?;
    Some(Container { id: status.container_id.clone()?, since: running.started_at.as_ref()?.0 })
}

fn last_exit(role: Role, pod: &Pod, status: &ContainerStatus) -> Option<ContainerExit> {
    let exits = [&status.state, &status.last_state]
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref());
    let exit = exits.into_iter().next()?;
    let restarts = status.restart_count;
    let at = exit.finished_at.as_ref()?.0;
    let exit = Exit {
        role: role.into(),
        name: pod.name_any(),
        reason: exit.reason.clone().unwrap_or_default(),
        exit_code: exit.exit_code,
        message: rljob_logging::readable(exit.message.as_deref().unwrap_or_default()).into(),
    };
    Some(ContainerExit { exit, at, restarts })
}

fn gate(pod: &Pod) -> Option<Gate> {
    pod.spec.readiness_gates.iter().find(|gate| gate.condition_type == GATE_WEIGHTS_SYNCED)?;
    let current = condition(pod, GATE_WEIGHTS_SYNCED);
    Some(current.map_or_else(Gate::default, |gate| Gate {
        open: gate.status == "True",
        message: gate.message.clone().unwrap_or_default(),
    }))
}

/// The node lifecycle controller sets Ready to False and keeps the reason, which is empty for a pod
/// that was ready. A kubelet always gives a reason.
fn is_unresponsive(pod: &Pod) -> bool {
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
    let deadline = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    let requested_at = deadline.saturating_sub(grace).unwrap_or(deadline);
    Some(Deletion { requested_at, deadline })
}

#[cfg(test)]
mod tests;
