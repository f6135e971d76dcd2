//! What the operator answers: conditions by the truth table of ARCHITECTURE.md, and numbers for
//! people and tools.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of an RLJob. `observedGeneration` is −1 until the operator has seen the object.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RLJobStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Succeeded is the summary of the run; Ready, Reconciling and Stalled are for GitOps tools;
    /// the rest name parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// Number of the learner group's current incarnation; grows with every restart, counted or not.
    #[serde(default)]
    pub attempt: u32,
    /// Restarts that count against `failurePolicy.maxRestarts`.
    #[serde(default)]
    pub restarts: u32,
    /// Fencing number of the coordinator pod that may act; grows with every new pod.
    #[serde(default)]
    pub epoch: u64,
    /// UID of the coordinator pod that holds `epoch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator_uid: Option<String>,
    /// When the children were first created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Since when pods are wanted without a break: the start or the last resume.
    /// `spec.activeDeadlineSeconds` counts from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since: Option<Time>,
    /// When the drain that `spec.suspend` asked for is cut short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline: Option<Time>,
    /// When the run succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The first cause of the newest failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Failure>,
    /// What happened to pods, the newest 16, oldest first: evictions, preemptions, lost nodes, hung
    /// engines. None of it counts against `failurePolicy.maxRestarts`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub incidents: Vec<Incident>,
    /// How far the run is; written at most once a minute while nothing else changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The inference engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<InferenceStatus>,
    /// The trainer pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<RoleStatus>,
    /// The newest complete checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
}

/// Why a process of the run failed.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// CamelCase reason.
    pub reason: String,
    /// One line for a person: what failed, with its last log lines.
    pub message: String,
    /// The pod it happened in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The process's exit code; 128 + n for signal n.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Something that happened to a pod.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// CamelCase reason, for example `Evicted`, `Preempted`, `NodeNotReady`, `PodLost`.
    pub reason: String,
    /// One line for a person: what happened, why, and what comes next.
    pub message: String,
    /// The pod.
    pub pod: String,
    /// Its UID: a successor has the same name.
    pub uid: String,
    /// The node it was on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// How far the run is.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Steps done.
    pub step: u32,
    /// Steps in all.
    pub total_steps: u32,
    /// Mean reward of the newest step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Trained tokens a second over the newest step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// When these numbers were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Pods of a role.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RoleStatus {
    /// Pods wanted.
    pub desired: i32,
    /// Pods that are ready.
    pub ready: i32,
}

/// The inference engines.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct InferenceStatus {
    /// Engines wanted.
    pub desired: i32,
    /// Pods whose server is up. Which engines hold the current weights is in `engines`.
    pub ready: i32,
    /// Pods that exist: what the scale subresource shows.
    #[serde(default)]
    pub replicas: i32,
    /// Selects the engines' pods, as text: what the scale subresource hands to autoscalers.
    #[serde(default)]
    pub selector: String,
    /// The engines, at most 32, those in trouble first; written with the progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub engines: Vec<EngineStatus>,
}

/// An engine, as its coordinator sees it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EngineStatus {
    /// Its pod.
    pub name: String,
    /// What it is good for.
    pub state: EngineStanding,
    /// The weights that it holds, `step-N.attempt-K`; none before it is first given some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// What an engine is good for; those in trouble first.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum EngineStanding {
    /// Does not answer.
    Unreachable,
    /// The coordinator has not said anything of it yet.
    Unknown,
    /// Answers, but holds other weights than the current ones.
    Stale,
    /// Its weights are being updated.
    Syncing,
    /// Holds the current weights and is used.
    Ready,
}

/// A complete checkpoint.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Steps it holds.
    pub step: u32,
    /// Its folder, relative to the run directory.
    pub path: String,
    /// When it was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}
