//! Arguments of a learner.

use std::path::PathBuf;

use rljob_protocol::supervisor::Restore;

use crate::mesh::GroupSize;

/// Arguments of a learner from its supervisor.
#[derive(Clone, Debug)]
pub struct StartArguments {
    /// Folder of tokens.
    pub tokens: PathBuf,
    /// Base URL of the coordinator.
    pub coordinator: String,
    /// Address of this process for other ranks and engines.
    pub address: String,
    pub rank: u32,
    pub size: GroupSize,
    /// Epoch of the coordinator that ordered the start.
    pub epoch: u64,
    pub attempt: u32,
    /// Host and port of rank 0's store.
    pub rendezvous: (String, u16),
    /// Checkpoint to start from.
    pub restore: Option<Restore>,
}
