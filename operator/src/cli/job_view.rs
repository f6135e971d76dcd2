//! State of an RLJob with its pods, for people and scripts. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use rljob_crds::RLJob;
use rljob_crds::names::{
    CONDITION_EVALUATION_READY, CONDITION_INFERENCE_READY, CONDITION_METRICS_TRACKED,
    CONDITION_READY, CONDITION_REWARD_READY, CONDITION_SETTINGS_EFFECTIVE, CONDITION_STALLED,
    CONDITION_SUCCEEDED, CONDITION_SUSPENDED, CONDITION_TEACHER_READY, CONDITION_TRAINER_READY,
    CONDITION_VERIFIERS_READY, CONDITION_WEIGHTS_SYNCED, LABEL_ROLE,
};
use rljob_crds::status::{
    CheckpointStatus, EngineStanding, EngineStatus, Failure, Incident, MemoryStatus, Progress,
    RLJobStatus,
};
use serde::Serialize;

use crate::cache::Pod;
use crate::desired::Role;
use crate::pods;

/// State of an RLJob.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobView {
    pub namespace: String,
    pub name: String,
    /// Reason of condition `Succeeded`: the STATUS column.
    pub status: String,
    pub message: String,
    pub suspended: bool,
    /// Number of the learner group, and the restarts that count.
    pub attempt: u32,
    pub restarts: u32,
    pub max_restarts: u32,
    pub start_time: Option<Timestamp>,
    pub completion_time: Option<Timestamp>,
    /// Absent before the first report of the coordinator.
    pub progress: Option<Progress>,
    pub checkpoint: Option<CheckpointStatus>,
    /// Absent on CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// Memory of the learners of a group of `trainer.groups`; absent on CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_memory: Option<MemoryStatus>,
    pub roles: Vec<RoleView>,
    pub last_failure: Option<Failure>,
    pub last_incident: Option<Incident>,
    /// Conditions that the job waits for; empty once it has ended.
    pub waits_for: Vec<WaitView>,
    /// Why pods are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods_unknown: Option<String>,
}

/// A role with its pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleView {
    pub role: &'static str,
    pub desired: i32,
    pub ready: i32,
    pub pods: Vec<PodView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    pub name: String,
    pub node: Option<String>,
    /// `Ready`, `Terminating`, what keeps it from starting, or its phase.
    pub state: String,
    pub restarts: i32,
    /// Engines only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineStanding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// A condition that a job waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitView {
    pub condition: String,
    pub reason: String,
    pub message: String,
    pub since: Timestamp,
}

/// Whether the job has ended, and its reason: `Completed`, `Failed`, …
pub fn outcome(job: &RLJob) -> Option<&Condition> {
    let condition = condition(job.status.as_ref()?, CONDITION_SUCCEEDED)?;
    (condition.status != "Unknown").then_some(condition)
}

/// Whether the pods of a suspended job are deleted.
pub fn is_released(job: &RLJob) -> bool {
    let condition = job.status.as_ref().and_then(|seen| condition(seen, CONDITION_SUSPENDED));
    condition.is_some_and(|seen| seen.status == "True")
}

fn condition<'a>(status: &'a RLJobStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// The state of a job; `pods` may be unknown, with the reason.
pub fn view(job: &RLJob, pods: Result<&[Pod], String>) -> JobView {
    let status = job.status.clone().unwrap_or_default();
    let summary = condition(&status, CONDITION_SUCCEEDED);
    let has_pods =
        pods.is_ok() && !(job.spec.suspend || is_released(job) || outcome(job).is_some());
    let known = pods.as_ref().copied().unwrap_or_default();
    let role = |role: Role| role_view(role, has_pods, &status, known);
    let further_engines = [Role::Evaluation, Role::Reward, Role::Teacher];
    let further_engines =
        further_engines.into_iter().filter(|role| role.engines(&job.spec).is_some());
    JobView {
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        status: summary.map_or_else(|| "Unknown".to_owned(), |summary| summary.reason.clone()),
        message: summary.map_or_else(
            || "the operator has not seen this RLJob: is it running?".to_owned(),
            |summary| summary.message.clone(),
        ),
        suspended: job.spec.suspend,
        attempt: status.attempt,
        restarts: status.restarts,
        max_restarts: job.spec.failure_policy.max_restarts,
        start_time: status.start_time.as_ref().map(|time| time.0),
        completion_time: status.completion_time.as_ref().map(|time| time.0),
        roles: [Role::Coordinator, Role::Inference]
            .into_iter()
            .chain(further_engines)
            .chain([Role::Trainer])
            .chain(job.spec.frozen_group().map(|_| Role::Group))
            .chain(job.spec.verifiers.as_ref().map(|_| Role::Verifier))
            .map(role)
            .collect(),
        last_incident: status.incidents.last().cloned(),
        waits_for: if outcome(job).is_some() { Vec::new() } else { waits(&status) },
        progress: status.progress,
        checkpoint: status.checkpoint,
        memory: status.memory,
        group_memory: status.trainer_groups.into_iter().find_map(|group| group.memory),
        last_failure: status.last_failure,
        pods_unknown: pods.err(),
    }
}

/// The conditions that keep a job from training, the most important first. `Ready` often repeats
/// the cause of another one.
fn waits(status: &RLJobStatus) -> Vec<WaitView> {
    let wanted = [
        (CONDITION_STALLED, "False"),
        (CONDITION_READY, "True"),
        (CONDITION_INFERENCE_READY, "True"),
        (CONDITION_EVALUATION_READY, "True"),
        (CONDITION_REWARD_READY, "True"),
        (CONDITION_TEACHER_READY, "True"),
        (CONDITION_TRAINER_READY, "True"),
        (CONDITION_VERIFIERS_READY, "True"),
        (CONDITION_WEIGHTS_SYNCED, "True"),
        (CONDITION_SETTINGS_EFFECTIVE, "True"),
        (CONDITION_METRICS_TRACKED, "True"),
    ];
    let mut waits: Vec<WaitView> = Vec::new();
    for (type_, good) in wanted {
        let Some(condition) = condition(status, type_) else { continue };
        let is_repeated = waits.iter().any(|wait| wait.message == condition.message);
        let is_wanted = condition.reason != rljob_crds::names::REASON_NOT_WANTED;
        if condition.status != good && is_wanted && !is_repeated {
            waits.push(WaitView {
                condition: type_.to_owned(),
                reason: condition.reason.clone(),
                message: condition.message.clone(),
                since: condition.last_transition_time.0,
            });
        }
    }
    waits
}

/// `has_pods`: pods are known, and the job is neither stopped nor has it ended.
fn role_view(role: Role, has_pods: bool, status: &RLJobStatus, pods: &[Pod]) -> RoleView {
    let mut of_role: Vec<&Pod> =
        pods.iter().filter(|pod| pod.labels().get(LABEL_ROLE).is_some_and(is(role))).collect();
    of_role.sort_by_key(|pod| pods::ordinal(pod));
    let engines = status.inference.as_ref().map(|inference| inference.engines.as_slice());
    let views: Vec<PodView> =
        of_role.iter().map(|pod| pod_view(pod, engines.unwrap_or_default())).collect();
    let recorded = match role {
        Role::Inference => {
            status.inference.as_ref().map(|engines| (engines.desired, engines.ready))
        }
        Role::Evaluation => status.evaluation.as_ref().map(|pods| (pods.desired, pods.ready)),
        Role::Reward => status.reward.as_ref().map(|pods| (pods.desired, pods.ready)),
        Role::Teacher => status.teacher.as_ref().map(|pods| (pods.desired, pods.ready)),
        Role::Trainer => status.trainer.as_ref().map(|pods| (pods.desired, pods.ready)),
        Role::Group => status.trainer_groups.first().map(|group| (group.desired, group.ready)),
        Role::Verifier => status.verifiers.as_ref().map(|pods| (pods.desired, pods.ready)),
        Role::Coordinator => None,
    };
    let (desired, ready) = recorded.unwrap_or_else(|| {
        let ready = views.iter().filter(|pod| pod.state == READY).count();
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let desired = i32::from(role == Role::Coordinator && has_pods);
        (number(views.len()).max(desired), number(ready))
    });
    RoleView { role: role.as_str(), desired, ready, pods: views }
}

fn is(role: Role) -> impl Fn(&String) -> bool {
    move |label| label == role.as_str()
}

/// State of a pod whose containers are ready.
const READY: &str = "Ready";

fn pod_view(pod: &Pod, engines: &[EngineStatus]) -> PodView {
    let name = pod.name_any();
    let status = pod.status.as_ref();
    let engine = engines.iter().find(|engine| engine.name == name);
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let restarts =
        containers.into_iter().flatten().map(|container| container.restart_count).sum::<i32>();
    PodView {
        node: pod.spec.node_name.clone(),
        state: state(pod),
        restarts,
        engine: engine.map(|engine| engine.state),
        weights: engine.and_then(|engine| engine.version.clone()),
        name,
    }
}

fn state(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    // An engine's pod is ready only with weights: its container tells whether its server is up.
    let is_up = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "ContainersReady" && condition.status == "True");
    if pod.metadata.deletion_timestamp.is_some() {
        "Terminating".to_owned()
    } else if is_up {
        READY.to_owned()
    } else if let Some(waiting) = pods::waiting(pod) {
        waiting.reason
    } else {
        status.and_then(|status| status.phase.clone()).unwrap_or_else(|| "Unknown".to_owned())
    }
}

#[cfg(test)]
mod tests;
