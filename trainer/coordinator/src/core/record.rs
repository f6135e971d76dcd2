//! Durable part of the run: one JSON document in the journal.

use std::path::PathBuf;
use std::time::Duration;

use rljob_protocol::status::LearnerFailure;
use rljob_protocol::supervisor::Restore;
use rljob_protocol::version::Version;
use serde::{Deserialize, Serialize};

/// Time since the coordinator process started. Monotonic.
pub type Now = Duration;

/// Key of the document in the journal.
pub const KEY: &str = "run";

/// The durable part of the run's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// Highest epoch seen.
    pub epoch: Option<u64>,
    /// Incarnation of the learner group.
    pub attempt: u32,
    /// Counted restarts.
    pub restarts: u32,
    /// Restarts in a row after which no learner got further than before.
    #[serde(default, alias = "restartsInVain")]
    pub restarts_without_progress: u32,
    /// First cause of the newest failure.
    pub last_failure: Option<LearnerFailure>,
    /// Stage of the learner group.
    pub stage: Stage,
    /// The newest weights that left the learners.
    pub published: Option<Published>,
    /// Whether the model is exported.
    pub exported: bool,
}

impl Record {
    /// Resets epochs and restarts for a recreated job. A failed run is retried; a finished one
    /// stays finished.
    pub fn renew(&mut self) {
        self.epoch = None;
        self.restarts = 0;
        self.restarts_without_progress = 0;
        if self.stage == Stage::Failed {
            self.stage = Stage::default();
            self.last_failure = None;
            self.attempt += 1;
        }
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
        /// What ran.
        layout: Layout,
        /// The first failure reported, if any.
        failure: Option<LearnerFailure>,
        /// Whether a supervisor was lost: then nothing is counted.
        lost: bool,
        /// Whether the run ends here.
        fatal: bool,
    },
    /// Everything is in a checkpoint and the learners are gone.
    Drained,
    /// The model is exported and the learners are gone.
    Finished,
    /// Failed permanently.
    Failed,
}

impl Stage {
    /// Its name, for logs.
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

/// One incarnation of the learner group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Layout {
    /// Supervisors in order of rank.
    pub members: Vec<Member>,
    /// Ranks in all.
    pub world_size: u32,
    /// Address of rank 0.
    pub rendezvous_address: String,
    /// Port of rank 0's store.
    pub rendezvous_port: u16,
    /// Checkpoint the group started from.
    pub restore: Option<Restore>,
}

/// A supervisor in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Member {
    pub name: String,
    /// The supervisor process; another one has no learners.
    pub instance: String,
    /// When it started, in milliseconds since 1970.
    #[serde(default)]
    pub started_at: u64,
    /// Rank of its first learner.
    pub first_rank: u32,
}

/// Weights that left the learners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Published {
    pub version: Version,
    /// The complete folder; none if they were broadcast.
    pub folder: Option<PathBuf>,
}
