//! `PUT /v1/desired`: the desired state of a coordinator. Level-triggered: the newest state
//! applies, whether or not earlier ones arrived.

use std::net::SocketAddr;

use rljob_crds::failure_policy::FailureRule;
use rljob_crds::status::Incident;
use serde::{Deserialize, Serialize};

/// Desired state of a coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Desired {
    /// Fencing number. A coordinator acts only under an epoch and rejects lower ones (409).
    pub epoch: u64,
    /// Generation of the spec that this state was computed from.
    pub generation: i64,
    /// Train, or drain.
    pub mode: Mode,
    /// Existing engines of rollouts.
    pub engines: Vec<EngineEndpoint>,
    /// Existing engines that only evaluate. Empty in jobs without them. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluation_engines: Vec<EngineEndpoint>,
    /// Existing engines that serve the reward model. Empty in jobs without them. Since protocol
    /// version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reward_engines: Vec<EngineEndpoint>,
    /// Existing engines that serve the teacher. Empty in jobs without them. Since protocol version
    /// 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub teacher_engines: Vec<EngineEndpoint>,
    /// Existing trainer pods. Of two supervisors of one name, that of the listed pod is accepted.
    /// Empty in local runs, and from operators of earlier releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supervisors: Vec<SupervisorIdentity>,
    /// Verifier pods that serve. Empty in jobs without them. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verifiers: Vec<VerifierEndpoint>,
    /// Disruptions of pods that the operator has recorded, oldest first, which the page of the run
    /// shows. Empty in local runs. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<Incident>,
    /// Checkpoint policy.
    pub checkpoint: CheckpointPolicy,
    /// Restart policy of the learners.
    pub restart: RestartPolicy,
}

/// Mode of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Continue until the last step.
    Run,
    /// Complete the current step, write a checkpoint, end the learners and report `Drained`.
    Drain,
}

/// Address of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineEndpoint {
    /// Name of its pod or process.
    pub name: String,
    /// Base URL without a trailing slash, for example `http://job-inference-0.job-inference:30000`.
    pub url: String,
    /// UID of its pod. An engine with another UID is another engine, whatever its name and URL.
    /// None for processes of a local run, and from operators of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// A trainer pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SupervisorIdentity {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

/// Address of a verifier pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifierEndpoint {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// IP address and port.
    pub address: SocketAddr,
}

impl Desired {
    /// The desired state without what a coordinator of this protocol version rejects.
    #[must_use]
    pub fn for_peer(mut self, version: u32) -> Self {
        if version < 2 {
            self.engines.iter_mut().for_each(|engine| engine.uid = None);
            self.supervisors.clear();
        }
        if version < 3 {
            self.verifiers.clear();
            self.evaluation_engines.clear();
            self.reward_engines.clear();
            self.teacher_engines.clear();
            self.incidents.clear();
        }
        self
    }
}

/// Interval and number of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointPolicy {
    /// Steps between checkpoints.
    pub every_steps: u32,
    /// Number of complete checkpoints and of intermediate exports to keep.
    pub keep_last: u32,
    /// Steps between intermediate exports; absent without exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export_every_steps: Option<u32>,
}

/// Restart budget, delay and hang timeout of learners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartPolicy {
    /// Maximum number of counted restarts.
    pub max_restarts: u32,
    /// Delay in seconds of the first restart, and of the first one after progress.
    pub backoff_initial_seconds: u32,
    /// Maximum delay in seconds.
    pub backoff_max_seconds: u32,
    /// Seconds without progress of any learner after which the group counts as hung.
    pub hang_timeout_seconds: u32,
    /// Actions on failures; the first matching rule applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FailureRule>,
}
