//! `POST /v1/supervisors/{name}`: a supervisor's report, at least twice a second and whenever
//! something changed; the answer is its order.
//!
//! Both sides are levels: a lost report or a lost order is made good by the next one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::version::Version;

/// Environment variable by which a learner knows the process id of its supervisor, which it must
/// not outlive.
pub const SUPERVISOR_PID_VARIABLE: &str = "RLJOB_SUPERVISOR_PID";

/// Header of every answer to supervisors and learners: the epoch of the coordinator that gives it.
/// One that is lower than one seen before comes from the past.
pub const EPOCH_HEADER: &str = "rljob-epoch";

/// What a supervisor has and sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SupervisorReport {
    /// Drawn when the supervisor process started; another one means that its learners are gone.
    pub instance: String,
    /// When it started, in milliseconds since 1970: of two processes of one name, the later one has
    /// it.
    pub started_at: u64,
    /// Address at which other ranks reach its learners.
    pub address: String,
    /// A free port for the rendezvous of the next attempt, in case rank 0 is here.
    pub rendezvous_port: u16,
    /// Learner processes it can run.
    pub processes: u32,
    /// Attempt of the learners it has; none before the first order.
    pub attempt: Option<u32>,
    /// State of each of them, by local index.
    pub learners: Vec<LearnerState>,
    /// Whether its pod is terminating: its learners continue until its deadline, so that they can
    /// write a checkpoint.
    #[serde(default)]
    pub terminating: bool,
}

/// State of a learner process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LearnerState {
    /// It runs.
    Running(HeartbeatAge),
    /// It ended.
    Exited {
        /// Exit code; 128 + n for signal n.
        code: i32,
        /// The last lines it wrote to standard error.
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

/// What a supervisor is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Order {
    /// Keep what runs; nothing to start.
    Wait,
    /// Have exactly these learners: those of an older attempt are killed first.
    Run(Group),
    /// Kill the learners, if any, and wait.
    Stop,
    /// The run is over: exit with code 0.
    Exit,
}

/// One incarnation of the learner group, as one supervisor sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The incarnation.
    pub attempt: u32,
    /// Rank of the supervisor's first learner; the others follow.
    pub first_rank: u32,
    /// Ranks in all.
    pub world_size: u32,
    /// Address of rank 0.
    pub rendezvous_address: String,
    /// Port of rank 0's TCPStore.
    pub rendezvous_port: u16,
    /// Checkpoint to start from; none starts from the model folder at step 0.
    pub restore: Option<Restore>,
}

/// A complete checkpoint to start from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restore {
    /// What it holds.
    pub version: Version,
    /// Its folder, absolute.
    pub path: PathBuf,
}
