//! `PUT /v1/desired`: what the operator wants of a coordinator. A level, not an edge: the newest
//! one holds, whatever was missed.

use rljob_crds::failure_policy::FailureRule;
use serde::{Deserialize, Serialize};

/// What the operator wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Desired {
    /// Fencing number. A coordinator acts only once it has one and refuses a lower one (409).
    pub epoch: u64,
    /// Generation of the spec this comes from.
    pub generation: i64,
    /// Run on, or finish the step, write a checkpoint and rest.
    pub mode: Mode,
    /// Every engine that exists.
    pub engines: Vec<EngineEndpoint>,
    /// Checkpoint policy.
    pub checkpoint: CheckpointPolicy,
    /// Restart policy of the learners.
    pub restart: RestartPolicy,
}

/// Run on or drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Continue until the last step.
    Run,
    /// Finish the step in progress, write a checkpoint, let the learners exit, report `drained`.
    Drain,
}

/// An engine that the coordinator may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineEndpoint {
    /// Its name: the pod's or the process's.
    pub name: String,
    /// Base URL without a trailing slash, for example `http://job-inference-0.job-inference:30000`.
    pub url: String,
}

/// When checkpoints are due and how many are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointPolicy {
    /// Steps between checkpoints.
    pub every_steps: u32,
    /// Complete checkpoints kept, and exports made on the way.
    pub keep_last: u32,
    /// Steps between exports during training; none without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export_every_steps: Option<u32>,
}

/// How often and how soon learners are restarted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartPolicy {
    /// Counted restarts allowed.
    pub max_restarts: u32,
    /// Longest wait in seconds before the first restart, and before the first after one that led to
    /// something.
    pub backoff_initial_seconds: u32,
    /// Longest wait in seconds.
    pub backoff_max_seconds: u32,
    /// Seconds without progress of any learner after which the group counts as hung.
    pub hang_timeout_seconds: u32,
    /// What follows from failures that match; the first rule that matches holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FailureRule>,
}
