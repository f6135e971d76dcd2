//! Durable part of the run: one JSON document in the journal.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rljob_protocol::learner::ValidationReport;
use rljob_protocol::status::LearnerFailure;
use rljob_protocol::supervisor::Restore;
use rljob_protocol::version::Version;
use serde::{Deserialize, Serialize};

use super::rejection::Rejection;

/// Time since the coordinator process started. Monotonic.
pub type Now = Duration;

/// Key of the document in the journal.
pub const KEY: &str = "run";

/// The durable part of the run's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Highest epoch seen.
    pub epoch: Option<u64>,
    /// The trainer, whose stage is that of the run.
    #[serde(flatten)]
    pub trainer: GroupRecord,
    /// Newest published weights.
    pub published: Option<Published>,
    /// Whether the model is exported.
    pub exported: bool,
    /// Groups of `trainer.groups`, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, GroupRecord>,
    /// Steps that the data has, in a run with `training.epochs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepsOfEpochs>,
    /// Evaluations that wait for evaluation engines, in order; the first one is in progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<PendingEvaluation>,
}

/// Steps of passes over the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepsOfEpochs {
    pub epochs: u32,
    pub steps: u32,
}

/// The durable part of a learner group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupRecord {
    /// Number of the learner group.
    pub attempt: u32,
    /// Counted restarts.
    pub restarts: u32,
    /// Consecutive restarts without progress.
    #[serde(default, alias = "restartsInVain")]
    pub restarts_without_progress: u32,
    /// First cause of the newest failure.
    pub last_failure: Option<LearnerFailure>,
    /// Stage of the learner group.
    pub stage: Stage,
}

impl Record {
    /// State of a run that continues from an earlier checkpoint, with a new attempt: names of
    /// weights and checkpoints are not used twice.
    #[must_use]
    pub fn rolled_back(&self) -> Self {
        let next = |record: &GroupRecord| GroupRecord {
            attempt: record.attempt.saturating_add(1),
            ..GroupRecord::default()
        };
        let groups = self.groups.iter().map(|(name, record)| (name.clone(), next(record)));
        Self {
            epoch: self.epoch,
            trainer: next(&self.trainer),
            groups: groups.collect(),
            steps: self.steps,
            ..Self::default()
        }
    }

    /// Resets epochs and restarts for a recreated job. A failed run is retried; a finished one
    /// stays finished.
    pub fn renew(&mut self) {
        self.epoch = None;
        for record in std::iter::once(&mut self.trainer).chain(self.groups.values_mut()) {
            record.restarts = 0;
            record.restarts_without_progress = 0;
        }
        if self.trainer.stage == Stage::Failed {
            self.retry();
        }
    }

    /// Lets a failed run start again.
    pub fn retry(&mut self) {
        self.trainer.reopen();
        self.trainer.last_failure = None;
        for record in self.groups.values_mut().filter(|record| record.stage == Stage::Failed) {
            record.reopen();
            record.last_failure = None;
        }
    }

    /// Lets a finished run continue.
    pub fn reopen(&mut self) {
        self.exported = false;
        self.trainer.reopen();
        self.groups.values_mut().for_each(GroupRecord::reopen);
    }
}

impl GroupRecord {
    /// Lets a group that has ended form again.
    fn reopen(&mut self) {
        self.stage = Stage::default();
        self.attempt = self.attempt.saturating_add(1);
    }

    /// Rejects an attempt other than the current one.
    pub fn fence(&self, attempt: u32) -> Result<(), Rejection> {
        if attempt == self.attempt && self.stage.layout().is_some() {
            return Ok(());
        }
        let (sent, current) = (attempt.into(), self.attempt.into());
        Err(Rejection::Fenced { what: "attempt", sent, current })
    }
}

/// Stages of the learner group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Stage {
    /// Waiting for enough supervisors (and, after a failure, for the backoff to pass).
    Forming {
        /// Whether a group ran before.
        restarting: bool,
    },
    /// Learners are ordered to run.
    Running(Layout),
    /// Learners are ordered to stop.
    Stopping {
        /// The group that ran.
        layout: Layout,
        /// First reported failure.
        failure: Option<LearnerFailure>,
        /// Whether a supervisor was lost; then no restart is counted.
        lost: bool,
        /// Whether the run ends here.
        fatal: bool,
    },
    /// The checkpoint is complete and the learners have exited.
    Drained,
    /// The model is exported and the learners have exited.
    Finished,
    /// Failed permanently.
    Failed,
}

impl Stage {
    /// The group that runs or stops.
    pub fn layout(&self) -> Option<&Layout> {
        match self {
            Self::Running(layout) | Self::Stopping { layout, .. } => Some(layout),
            _ => None,
        }
    }

    /// Name for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Forming { .. } => "Forming",
            Self::Running(_) => "Running",
            Self::Stopping { .. } => "Stopping",
            Self::Drained => "Drained",
            Self::Finished => "Finished",
            Self::Failed => "Failed",
        }
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self::Forming { restarting: false }
    }
}

/// Layout of a learner group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Layout {
    /// Supervisors in order of rank.
    pub members: Vec<Member>,
    /// Number of ranks.
    pub world_size: u32,
    /// Address of rank 0.
    pub rendezvous_address: String,
    /// Port of rank 0's store.
    pub rendezvous_port: u16,
    /// Checkpoint that the group started from.
    pub restore: Option<Restore>,
}

/// A supervisor in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Member {
    pub name: String,
    /// Id of the supervisor process. Another process has no learners.
    pub instance: String,
    /// Start time in milliseconds since 1970.
    #[serde(default)]
    pub started_at: u64,
    /// UID of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Rank of its first learner.
    pub first_rank: u32,
}

/// Published weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Published {
    pub version: Version,
    /// Complete folder; none for broadcast weights.
    pub folder: Option<PathBuf>,
}

/// An evaluation whose weights are on disk, or are being written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PendingEvaluation {
    /// The evaluated weights.
    pub version: Version,
    /// Folder with them, relative to the run directory, which may move.
    pub folder: PathBuf,
    /// Indices of the suites.
    pub suites: Vec<usize>,
    /// Loss of the evaluation data at this step, if the learners measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<ValidationReport>,
}
