//! `GET /v1/status`: report of a coordinator to the operator and `rljob run`.

mod engines;

use rljob_crds::names::REASON_PROTOCOL_UNSUPPORTED;
use rljob_crds::trainer_groups::MAX_GROUPS;
use serde::{Deserialize, Serialize};

pub use self::engines::{EngineCondition, EngineState, HUNG_SECONDS, RequestCounts};
use crate::gpu_fault::GpuFault;
use crate::memory::MemoryPlan;
pub use crate::metrics::{EvaluationMetrics, StepMetrics};
use crate::peer::ProtocolUnsupported;
use crate::version::Version;

/// Number of steps before it is known.
pub const UNKNOWN_STEPS: u32 = u32::MAX;

/// Complete state of a coordinator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CoordinatorStatus {
    /// Epoch that the coordinator acts under; absent before the first `PUT /v1/desired`, and while
    /// a fault of the volume delays the start. Only `journal_failure` counts then.
    pub epoch: Option<u64>,
    /// Generation of the applied desired state.
    pub generation: Option<i64>,
    /// Phase of the run.
    pub phase: Phase,
    /// Number of the current learner group.
    pub attempt: u32,
    /// Counted restarts.
    pub restarts: u32,
    /// First cause of the newest failure of a learner.
    pub last_failure: Option<LearnerFailure>,
    /// Completed steps as reported by the learners. Decreases only after an explicit restore.
    pub step: u32,
    /// Steps of the whole run; [`UNKNOWN_STEPS`] until the data of a run with `training.epochs` is
    /// open.
    pub total_steps: u32,
    /// Metrics of the newest step.
    pub metrics: Option<StepMetrics>,
    /// Metrics of the newest evaluation.
    pub evaluation: Option<EvaluationMetrics>,
    /// Supervisors, one per trainer pod.
    pub supervisors: Vec<SupervisorState>,
    /// Engines of the desired state.
    pub engines: Vec<EngineState>,
    /// Newest complete checkpoint.
    pub checkpoint: Option<Version>,
    /// The newest [`MAX_CHECKPOINTS`] complete checkpoints, oldest first. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Version>,
    /// Supervisor or learner whose release is too old for this run. Since protocol version 2; peers
    /// of version 1 receive it as `last_failure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<ProtocolUnsupported>,
    /// Current download of a Hugging Face repository. Since protocol version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadProgress>,
    /// Reward whose verifier is down. Since protocol version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_outage: Option<RewardOutage>,
    /// First failed try of a reward. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_failure: Option<RewardFailure>,
    /// What the learners do or wait for; absent before they ask. Since protocol version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// Why a recent write to the journal failed, or the claim of the run directory, for example a
    /// full disk. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_failure: Option<String>,
    /// Experiment trackers that do not take metrics, and why. The run does not wait for them. Since
    /// protocol version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracker_failure: Option<String>,
    /// Memory plan of the newest learners on GPUs. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryPlan>,
    /// Requests for completions. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestCounts>,
    /// Calls of programs that verifier pods run; absent in jobs without such pods. Since protocol
    /// version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifiers: Option<VerifierLoad>,
    /// Engines of the desired state that only evaluate. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluation_engines: Vec<EngineState>,
    /// Engines of the desired state that serve the reward model. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reward_engines: Vec<EngineState>,
    /// Engines of the desired state that serve the teacher. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub teacher_engines: Vec<EngineState>,
    /// Evaluations that wait or run on such engines; absent in jobs without them. Since protocol
    /// version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_evaluations: Option<u32>,
    /// Groups of `trainer.groups`, by name; empty in jobs without them. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupState>,
}

impl CoordinatorStatus {
    /// Supervisors of the trainer and of the groups of `trainer.groups`.
    pub fn all_supervisors(&self) -> impl Iterator<Item = &SupervisorState> {
        self.supervisors.iter().chain(self.groups.iter().flat_map(|group| &group.supervisors))
    }

    /// Engines of all sets: those of rollouts, of evaluations, of the reward model and of the
    /// teacher.
    pub fn all_engines(&self) -> impl Iterator<Item = &EngineState> {
        let updated = self.engines.iter().chain(&self.evaluation_engines);
        updated.chain(&self.reward_engines).chain(&self.teacher_engines)
    }
}

/// Most checkpoints of a status.
pub const MAX_CHECKPOINTS: usize = 100;
/// Most supervisors and engines of a status.
const MAX_ENTRIES: usize = 16384;
/// Longest name in bytes, that of an object in Kubernetes.
const MAX_NAME: usize = 253;
/// Longest message in bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Highest counter.
const MAX_COUNTER: u32 = u32::MAX / 2;

impl CoordinatorStatus {
    /// Checks the limits of a status that another process sent, except that of the epoch, which
    /// depends on the recorded one.
    ///
    /// # Errors
    /// The first field that exceeds its limit.
    pub fn check(&self) -> Result<(), String> {
        let counters =
            [("step", self.step), ("attempt", self.attempt), ("restarts", self.restarts)];
        let of_group =
            |group: &GroupState| [("attempt", group.attempt), ("restarts", group.restarts)];
        let mut counters = counters.into_iter().chain(self.groups.iter().flat_map(of_group));
        if let Some((field, _)) = counters.find(|(_, value)| *value > MAX_COUNTER) {
            return Err(format!("{field} in its status exceeds {MAX_COUNTER}"));
        }
        if self.groups.len() > MAX_GROUPS {
            return Err(format!("its status has more than {MAX_GROUPS} groups"));
        }
        if self.checkpoints.len() > MAX_CHECKPOINTS {
            return Err(format!("its status has more than {MAX_CHECKPOINTS} checkpoints"));
        }
        let of_groups = || self.groups.iter().flat_map(|group| &group.supervisors);
        let supervisors = self.supervisors.len().saturating_add(of_groups().count());
        if supervisors.max(self.all_engines().count()) > MAX_ENTRIES {
            return Err(format!("its status has more than {MAX_ENTRIES} supervisors or engines"));
        }
        let names = self.supervisors.iter().chain(of_groups()).map(|entry| &entry.name);
        let names = names.chain(self.groups.iter().map(|group| &group.name));
        let mut names = names.chain(self.all_engines().map(|entry| &entry.name));
        if names.any(|name| name.len() > MAX_NAME) {
            return Err(format!("a name in its status has more than {MAX_NAME} bytes"));
        }
        let of_groups = self.groups.iter().filter_map(|group| group.last_failure.as_ref());
        let failure = self.last_failure.iter().chain(of_groups).map(|failure| &failure.message);
        let outage = self.reward_outage.iter().flat_map(|outage| [&outage.reward, &outage.cause]);
        let tries = self.reward_failure.iter().flat_map(|failed| [&failed.reward, &failed.cause]);
        let engines = self.all_engines().filter_map(|engine| engine.unsuitable.as_ref());
        let others = self.journal_failure.iter().chain(&self.tracker_failure);
        if failure
            .chain(outage)
            .chain(tries)
            .chain(engines)
            .chain(others)
            .any(|message| message.len() > MAX_MESSAGE)
        {
            return Err(format!("a message in its status has more than {MAX_MESSAGE} bytes"));
        }
        let faults = |supervisor: &SupervisorState| supervisor.gpu_fault.clone();
        if !self.all_supervisors().filter_map(faults).all(|fault| fault.is_valid()) {
            return Err("the name of a GPU in its status is too long".to_owned());
        }
        let of_groups = self.groups.iter().filter_map(|group| group.memory.as_ref());
        self.memory.iter().chain(of_groups).try_for_each(MemoryPlan::check)
    }

    /// Removes fields that a peer of this protocol version rejects.
    #[must_use]
    pub fn for_peer(mut self, protocol: u32) -> Self {
        if protocol < 2 {
            self.download = None;
            (self.reward_outage, self.reward_failure) = (None, None);
            self.activity = None;
            self.journal_failure = None;
            self.tracker_failure = None;
            (self.memory, self.requests, self.verifiers) = (None, None, None);
            self.evaluation_engines.clear();
            self.reward_engines.clear();
            self.teacher_engines.clear();
            self.pending_evaluations = None;
            self.groups.clear();
            self.supervisors.iter_mut().for_each(|supervisor| {
                (supervisor.uid, supervisor.gpu_fault) = (None, None);
            });
            self.engines.iter_mut().for_each(|engine| {
                (engine.uid, engine.unsuitable) = (None, None);
            });
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

/// What the learners do or wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activity {
    /// They train a step.
    Training,
    /// They measure the loss of the evaluation data.
    Validation,
    /// They publish weights, or wait until the engines hold them.
    WeightSync,
    /// They write a checkpoint, or wait for one.
    Checkpoint,
    /// They export the model.
    Export,
    /// They wait for the samples of the next batch.
    Rollouts,
    /// They wait for an evaluation.
    Evaluation,
    /// They wait for the data of the next batch.
    Data,
    /// They wait for what groups of `trainer.groups` infer of the next batch.
    Groups,
    /// They exit.
    Exit,
    /// An activity of a newer release.
    #[serde(other)]
    Other,
}

/// A verifier that is down; sampling waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RewardOutage {
    /// Name and verifier of the reward.
    pub reward: String,
    /// Seconds since the first failure.
    pub seconds: u64,
    /// The first failure.
    pub cause: String,
}

/// First failed try of a reward, which is retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RewardFailure {
    /// Name and verifier of the reward.
    pub reward: String,
    /// Its error, in one line.
    pub cause: String,
    /// Whether the reward has scored a completion since its last failed try.
    pub answered: bool,
}

/// Calls of programs that verifier pods run, from which the number of pods follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifierLoad {
    /// Calls that a process runs.
    pub running: u32,
    /// Calls that wait for a process.
    pub waiting: u32,
    /// Pods that would run all calls at once: the most of the last five minutes.
    pub needed_pods: u32,
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

/// Phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waiting for the desired state, supervisors or engines.
    #[default]
    Starting,
    /// Training.
    Running,
    /// A learner failed or a supervisor is lost; the learner group restarts.
    Restarting,
    /// The current step is completed before the run drains.
    Draining,
    /// The checkpoint is complete and the learners have exited.
    Drained,
    /// The last step is complete and the model is exported.
    Finished,
    /// The restart budget is exhausted or the input is invalid; `last_failure` has the cause.
    Failed,
}

/// Reason of a [`LearnerFailure`] of inputs that the coordinator cannot use.
pub const COORDINATOR_INPUT: &str = "CoordinatorInput";

/// Failure of a learner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LearnerFailure {
    /// CamelCase reason: `LearnerExited`, `LearnerKilled`, `LearnerHung`, `LearnerInput`,
    /// `CoordinatorInput`, `RewardUnavailable`.
    pub reason: String,
    /// Message with the failed process and its last log lines, except those of level INFO.
    pub message: String,
    /// Supervisor of the learner.
    pub supervisor: Option<String>,
    /// Exit code; 128 + n for signal n.
    pub exit_code: Option<i32>,
}

/// State of a group of `trainer.groups`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupState {
    /// Name of the group.
    pub name: String,
    /// Number of its current attempt.
    pub attempt: u32,
    /// Counted restarts of the group.
    pub restarts: u32,
    /// Whether its learners are ordered to run.
    pub running: bool,
    /// First cause of the newest failure of one of its learners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LearnerFailure>,
    /// Its supervisors, one per pod.
    pub supervisors: Vec<SupervisorState>,
    /// Memory plan of its newest learners on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryPlan>,
}

/// State of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SupervisorState {
    /// Name of its pod or process.
    pub name: String,
    /// Whether it reported within the last seconds.
    pub alive: bool,
    /// Number of its running learners of the current attempt.
    pub learners: u32,
    /// UID of its pod; none for a process of a local run. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Newest fault of its GPUs. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_fault: Option<GpuFault>,
}

#[cfg(test)]
mod tests {
    use super::Activity;

    #[test]
    fn an_activity_of_a_newer_release_is_read() {
        for (json, expected) in
            [("\"Rollouts\"", Activity::Rollouts), ("\"Dreaming\"", Activity::Other)]
        {
            assert_eq!(serde_json::from_str::<Activity>(json).unwrap(), expected);
        }
    }
}
