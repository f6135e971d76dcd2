//! Status of an RLJob: conditions by the truth table of ARCHITECTURE.md, progress, and the state of
//! each role.

mod memory;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::memory::{MemoryPart, MemoryStatus, gib};

/// Status of an RLJob. `observedGeneration` is −1 until the operator has seen the object.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RLJobStatus {
    /// Generation of the spec that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Succeeded` summarizes the run; `Ready`, `Reconciling` and `Stalled` are for GitOps tools;
    /// the others describe parts of the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// Number of the current learner group. Increases with every restart, counted or not.
    #[serde(default)]
    pub attempt: u32,
    /// Restarts that count against `failurePolicy.maxRestarts`.
    #[serde(default)]
    pub restarts: u32,
    /// Fencing number of the active coordinator pod. Increases with every new pod.
    #[serde(default)]
    pub epoch: u64,
    /// UID of the coordinator pod that holds `epoch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator_uid: Option<String>,
    /// Time at which the children were first created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time of the start or the last resume, from which `spec.activeDeadlineSeconds` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since: Option<Time>,
    /// Time at which training began after `activeSince`. `spec.startupDeadlineSeconds` applies
    /// until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_since: Option<Time>,
    /// Time at which the pods of a suspended job are deleted even if its drain is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline: Option<Time>,
    /// Time at which the run succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The failure rules in force and their start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_rules: Option<AppliedRules>,
    /// First cause of the newest failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Failure>,
    /// The newest 16 disruptions of pods, oldest first: evictions, preemptions, lost nodes, hung
    /// engines. They do not count against `failurePolicy.maxRestarts`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub incidents: Vec<Incident>,
    /// Progress of the run. Written at most once a minute while nothing else changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Inference engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<InferenceStatus>,
    /// Engines that only evaluate. Absent in jobs without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<RoleStatus>,
    /// Engines of a reward model. Absent in jobs without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<RoleStatus>,
    /// Engines of a teacher. Absent in jobs without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<RoleStatus>,
    /// Trainer pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<RoleStatus>,
    /// Groups of `spec.trainer.groups`. Absent in jobs without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 4),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub trainer_groups: Vec<TrainerGroupStatus>,
    /// Verifier pods. Absent in jobs without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifiers: Option<RoleStatus>,
    /// Memory of the learners' GPUs. Absent on CPUs. Written with the progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// Newest complete checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// The newest 100 complete checkpoints, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub checkpoints: Vec<CheckpointStatus>,
}

/// Failure rules in force. They apply to failures after `since`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AppliedRules {
    /// SHA-256 of `spec.failurePolicy.rules` as JSON.
    pub sha256: String,
    /// Time at which the operator first saw these rules.
    pub since: Time,
}

/// Failure of a process of the run.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// CamelCase reason.
    pub reason: String,
    /// Message with the failed process and its last log lines, except those of level INFO.
    pub message: String,
    /// Pod of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Exit code of the process; 128 + n for signal n.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Time at which it was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Disruption of a pod.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// CamelCase reason, for example `Evicted`, `Preempted`, `NodeNotReady`, `PodLost`.
    pub reason: String,
    /// Message with the event, its cause and the next action.
    pub message: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod, whose successor has the same name.
    pub uid: String,
    /// Node of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Time at which it was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Progress of a run.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Completed steps.
    pub step: u32,
    /// Steps of the whole run.
    pub total_steps: u32,
    /// Mean reward of the newest step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Trained tokens per second in the newest step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Samples that were rejected while the batch of the newest step was sampled. Absent for 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_samples: Option<u32>,
    /// Requests for completions that waited for an engine when another of these numbers changed
    /// last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_requests: Option<u32>,
    /// Newest evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationStatus>,
    /// Time of the last change of these numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Results of an evaluation.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationStatus {
    /// Completed steps when it was made.
    pub step: u32,
    /// Mean reward of sampled completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<f64>,
    /// Mean reward of greedy completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<f64>,
    /// Mean loss per token of held-out completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Newest results of each suite of `dataset.evaluation.suites`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub suites: Vec<SuiteStatus>,
}

/// Newest results of a suite.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct SuiteStatus {
    /// Name of the suite.
    pub name: String,
    /// Completed steps when it was evaluated.
    pub step: u32,
    /// Mean reward of sampled completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<f64>,
    /// Mean reward of greedy completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<f64>,
}

/// Pods of a role, or its engines, each of which has `podsPerReplica` pods.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RoleStatus {
    /// Desired number of pods or engines.
    pub desired: i32,
    /// Number of ready pods, or of engines whose pods are all up.
    pub ready: i32,
}

/// State of a group of `spec.trainer.groups`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TrainerGroupStatus {
    /// Name of the group.
    pub name: String,
    /// Desired number of pods.
    pub desired: i32,
    /// Number of ready pods.
    pub ready: i32,
    /// Number of its current attempt. Increases with every restart of the group, counted or not.
    #[serde(default)]
    pub attempt: u32,
    /// Its restarts that count against `failurePolicy.maxRestarts`, apart from those of the
    /// trainer.
    #[serde(default)]
    pub restarts: u32,
    /// Memory of its learners' GPUs, without `peakBytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
}

/// State of the inference engines.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct InferenceStatus {
    /// Desired number of engines.
    pub desired: i32,
    /// Number of engines whose pods are all up. `engines` shows which engines hold the current
    /// weights.
    pub ready: i32,
    /// Number of engines that have pods, for the scale subresource.
    #[serde(default)]
    pub replicas: i32,
    /// Label selector of engine pods, for autoscalers that use the scale subresource. Empty with
    /// `podsPerReplica` above 1, because autoscalers would count each pod as an engine.
    #[serde(default)]
    pub selector: String,
    /// At most 32 engines, unhealthy ones first. Written with the progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub engines: Vec<EngineStatus>,
}

/// State of an engine as reported by the coordinator.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EngineStatus {
    /// Name of its pod, or of its first pod.
    pub name: String,
    /// Reachability and weights.
    pub state: EngineStanding,
    /// Version of its weights, `step-N.attempt-K`. Absent before the first weight sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Reachability and weights of an engine, ordered from unhealthy to healthy.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum EngineStanding {
    /// Does not respond.
    Unreachable,
    /// Not reported by the coordinator yet.
    Unknown,
    /// Responds, and holds weights of another version.
    Stale,
    /// Weights are being updated.
    Syncing,
    /// Holds the current weights and receives requests.
    Ready,
}

/// Complete checkpoint.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Number of completed steps.
    pub step: u32,
    /// Folder, relative to the run directory.
    pub path: String,
    /// Time at which it was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}
