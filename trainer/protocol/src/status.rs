//! `GET /v1/status`: what a coordinator reports to the operator and to `rljob run`.

use rljob_crds::names::REASON_PROTOCOL_UNSUPPORTED;
use serde::{Deserialize, Serialize};

pub use crate::metrics::{EvaluationMetrics, StepMetrics};
use crate::peer::ProtocolUnsupported;
use crate::version::Version;

/// A coordinator's state, whole each time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CoordinatorStatus {
    /// The epoch it acts under; none before the first `PUT /v1/desired`.
    pub epoch: Option<u64>,
    /// Generation of the desired state that is applied.
    pub generation: Option<i64>,
    /// What the run is doing.
    pub phase: Phase,
    /// Incarnation of the learner group.
    pub attempt: u32,
    /// Counted restarts.
    pub restarts: u32,
    /// The first cause of the newest failure of a learner.
    pub last_failure: Option<LearnerFailure>,
    /// Steps done: reported by the learners; decreases only through an explicit restore.
    pub step: u32,
    /// Steps in all.
    pub total_steps: u32,
    /// The newest step's numbers.
    pub metrics: Option<StepMetrics>,
    /// The newest evaluation's numbers.
    pub evaluation: Option<EvaluationMetrics>,
    /// Trainer pods (supervisors) that report.
    pub supervisors: Vec<SupervisorState>,
    /// Engines, as listed in the desired state.
    pub engines: Vec<EngineState>,
    /// The newest complete checkpoint.
    pub checkpoint: Option<Version>,
    /// A supervisor or learner that is too old for this run. Since protocol version 2; a peer of
    /// version 1 receives it as `last_failure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<ProtocolUnsupported>,
    /// The Hugging Face repository that is being downloaded. Since protocol version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadProgress>,
}

impl CoordinatorStatus {
    /// The part that a peer of this protocol version can read.
    #[must_use]
    pub fn for_peer(mut self, protocol: u32) -> Self {
        if protocol < 2 {
            self.download = None;
            self.metrics = self.metrics.map(|metrics| metrics.for_peer(protocol));
            self.evaluation = self.evaluation.map(|evaluation| evaluation.for_peer(protocol));
            if let Some(unsupported) = self.unsupported.take() {
                self.last_failure = Some(LearnerFailure {
                    reason: REASON_PROTOCOL_UNSUPPORTED.to_owned(),
                    message: unsupported.to_string(),
                    supervisor: None,
                    exit_code: None,
                });
            }
        }
        self
    }
}

/// Progress of the download of a Hugging Face repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DownloadProgress {
    /// Name of the repository.
    pub repository: String,
    /// Bytes in the run directory.
    pub downloaded_bytes: u64,
    /// Bytes of all files that the run needs; 0 until they are listed.
    pub total_bytes: u64,
}

impl std::fmt::Display for DownloadProgress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
        let (done, total) = (mebibytes(self.downloaded_bytes), mebibytes(self.total_bytes));
        write!(formatter, "downloading {}: {done} of {total} MiB", self.repository)
    }
}

/// What the run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waiting for the desired state, supervisors or engines.
    Starting,
    /// Steps are being made.
    Running,
    /// A learner failed or a supervisor is lost; the group is being started again.
    Restarting,
    /// Asked to drain; the step in progress is being finished.
    Draining,
    /// Drained: a checkpoint holds everything, the learners are gone.
    Drained,
    /// The last step is done and the model is exported.
    Finished,
    /// The restart budget is spent, or the input cannot be run; `last_failure` says why.
    Failed,
}

/// Why a learner failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LearnerFailure {
    /// CamelCase reason: `LearnerExited`, `LearnerKilled`, `LearnerHung`, `LearnerInput`,
    /// `CoordinatorInput`.
    pub reason: String,
    /// One line: what failed, with the last log lines.
    pub message: String,
    /// The supervisor it happened under.
    pub supervisor: Option<String>,
    /// Exit code; 128 + n for signal n.
    pub exit_code: Option<i32>,
}

/// A supervisor that reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SupervisorState {
    /// Its name: the pod's or the process's.
    pub name: String,
    /// Whether it reported within the last seconds.
    pub alive: bool,
    /// Learners running under it in the current attempt.
    pub learners: u32,
}

/// An engine as the coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineState {
    /// Its name.
    pub name: String,
    /// What it is good for.
    pub state: EngineCondition,
    /// The weights it was seen to hold; none for weights that no learner published.
    pub version: Option<Version>,
    /// Seconds since it last answered, or since it was listed if it never has; none while it
    /// answers.
    pub silent_seconds: Option<u32>,
}

/// What an engine is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineCondition {
    /// Does not answer.
    Unreachable,
    /// Answers, but holds other weights than the current ones.
    Stale,
    /// Weights are being updated.
    Syncing,
    /// Holds the current weights and is routed to.
    Ready,
}
