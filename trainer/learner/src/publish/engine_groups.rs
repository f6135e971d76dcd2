//! Process groups of a sender with its engines, kept between broadcasts.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use rljob_collective::{CollectiveError, DeviceEvent, DeviceGroup, Group, Store, Stream};
use rljob_protocol::learner::Transfer;
use tch::{Device, Tensor};

/// Timeout of an engine joining its process group, and of one broadcast.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Where a sender's weights are, and its address for engines.
#[derive(Clone, Debug)]
pub struct Place {
    pub address: String,
    pub device: Device,
}

/// A process group with an engine: over NCCL between GPUs, else over Gloo.
#[derive(Debug)]
pub enum EngineGroup {
    Host(Group),
    Device(DeviceGroup),
}

impl EngineGroup {
    /// Joins as the sender, rank 0.
    fn join(store: &Store, place: &Place, transfer: &Transfer) -> Result<Self, CollectiveError> {
        let Transfer { group, world_size, .. } = transfer;
        match place.device {
            Device::Cuda(index) => {
                let ranks = (0, *world_size);
                DeviceGroup::join_weight_update(store, group, ranks, index, TIMEOUT)
                    .map(Self::Device)
            }
            _ => Group::join_weight_update(store, group, 0, *world_size, &place.address, TIMEOUT)
                .map(Self::Host),
        }
    }

    /// Sends `contents` in order, on a GPU after `copied` and until `given_up` is true.
    ///
    /// # Errors
    /// The engine leaves the group, does not receive in time, or was given up.
    pub fn send(
        &self,
        contents: &[Tensor],
        copied: Option<&DeviceEvent>,
        given_up: &AtomicBool,
    ) -> Result<(), CollectiveError> {
        match self {
            Self::Host(group) => {
                contents.iter().try_for_each(|content| group.broadcast(content, 0))
            }
            Self::Device(group) => {
                if let Some(copied) = copied {
                    copied.wait(Stream::Of(group))?;
                }
                for content in contents {
                    group.broadcast(content, 0)?;
                }
                group.finish_unless(given_up)
            }
        }
    }
}

/// The process group of each engine by its name, while no transfer uses it. A group that is dropped
/// closes its connections, so that an engine that waits in it gets an error.
#[derive(Debug, Default)]
pub struct KeptGroups(Mutex<HashMap<String, (String, EngineGroup)>>);

impl KeptGroups {
    /// The group that `transfer` names: the kept one, or a new one, which returns once the engine
    /// has joined. Any other group with the engine is left.
    ///
    /// # Errors
    /// The engine does not join in time, or the group should exist and does not.
    pub fn take_or_join(
        &self,
        store: &Store,
        place: &Place,
        transfer: &Transfer,
    ) -> Result<EngineGroup, CollectiveError> {
        let kept = self.0.lock().remove(&transfer.engine);
        if let Some((name, group)) = kept
            && name == transfer.group
        {
            return Ok(group);
        }
        if transfer.kept {
            return Err(CollectiveError {
                operation: format!("continue in process group `{}`", transfer.group),
                place: format!("sender of engine {}", transfer.engine),
                message: "this process has left it after a failure".to_owned(),
            });
        }
        EngineGroup::join(store, place, transfer)
    }

    /// Keeps the group after a complete broadcast.
    pub fn keep(&self, transfer: &Transfer, group: EngineGroup) {
        // A transfer over a newer group may have ended before this one.
        let mut groups = self.0.lock();
        groups.entry(transfer.engine.clone()).or_insert_with(|| (transfer.group.clone(), group));
    }
}
