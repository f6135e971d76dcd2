//! `POST /v1/supervisors/{name}`: report of a supervisor, twice per second and after each change.
//! The response is its order.
//!
//! Both are level-triggered: the next report or order replaces a lost one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::gpu_fault::GpuFault;
use crate::version::Version;

/// Environment variable with the process id of the supervisor. A learner exits with it.
pub const SUPERVISOR_PID_VARIABLE: &str = "RLJOB_SUPERVISOR_PID";

/// Header of every response to supervisors and learners: epoch of the coordinator. Responses with a
/// lower epoch than an earlier one are outdated.
pub const EPOCH_HEADER: &str = "rljob-epoch";

/// Report of a supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SupervisorReport {
    /// Random id of the supervisor process. After a change, its earlier learners no longer exist.
    pub instance: String,
    /// Start time in milliseconds since 1970. Of two processes with the same name, that of the pod
    /// that the operator lists owns the name, and otherwise the later one.
    pub started_at: u64,
    /// UID of its pod; none for a process of a local run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Group of `trainer.groups` that it belongs to; none of the trainer itself. Since protocol
    /// version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Address of its learners for other ranks.
    pub address: String,
    /// Free port for the rendezvous of the next attempt, used if rank 0 runs here.
    pub rendezvous_port: u16,
    /// Number of learner processes that it runs.
    pub processes: u32,
    /// Attempt of its learners; absent before the first order.
    pub attempt: Option<u32>,
    /// State of each learner, by local index.
    pub learners: Vec<LearnerState>,
    /// Whether its pod is terminating: its learners continue until its deadline, so that they can
    /// write a checkpoint.
    #[serde(default)]
    pub terminating: bool,
    /// The newest faults of its GPUs, oldest first. Since protocol version 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_faults: Vec<GpuFault>,
}

impl SupervisorReport {
    /// The report without what a coordinator of this protocol version rejects.
    #[must_use]
    pub fn for_peer(mut self, version: u32) -> Self {
        if version < 2 {
            self.uid = None;
            self.gpu_faults.clear();
        }
        self
    }
}

/// State of a learner process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LearnerState {
    /// Running.
    Running(HeartbeatAge),
    /// Exited.
    Exited {
        /// Exit code; 128 + n for signal n.
        code: i32,
        /// Last lines of standard error.
        log_tail: String,
    },
}

/// Ages of the last heartbeat and the last progress of a learner process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatAge {
    /// Seconds since its last heartbeat, which a separate thread sends every second; absent before
    /// the first.
    pub beat_seconds: Option<u32>,
    /// Seconds since the last progress of its loop (a micro-batch, a tensor, an instruction), or
    /// since its start.
    pub progress_seconds: u32,
}

/// Byte that a learner writes to its standard output every second without progress of its loop.
pub const BEAT: u8 = b'.';
/// Byte of a second with progress.
pub const PROGRESS: u8 = b'+';

/// Order for a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Order {
    /// No change.
    Wait,
    /// Run exactly these learners. Learners of older attempts are killed first.
    Run(Group),
    /// Kill the learners, if any, and wait.
    Stop,
    /// Exit with code 0: the run has ended.
    Exit,
}

/// A supervisor's part of a learner group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// Number of the learner group.
    pub attempt: u32,
    /// Rank of the supervisor's first learner; the others have the next ranks.
    pub first_rank: u32,
    /// Number of ranks of the group.
    pub world_size: u32,
    /// Address of rank 0.
    pub rendezvous_address: String,
    /// Port of rank 0's TCPStore.
    pub rendezvous_port: u16,
    /// Checkpoint to start from. Default the model folder at step 0.
    pub restore: Option<Restore>,
}

/// Checkpoint to start from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restore {
    /// Version of the checkpoint.
    pub version: Version,
    /// Absolute path of its folder.
    pub path: PathBuf,
}
