//! Weight sync by broadcast: a sender has staged its copy and hosts a store; each of its engines
//! joins a group of its own and receives.
//!
//! The calls for all of a sender's engines are under way together, since the sender goes from group
//! to group and must find each engine there.

use std::sync::Arc;

use rljob_protocol::learner::{TensorInfo, Transfer};
use rljob_protocol::sglang::{InitWeightsUpdateGroup, UpdateWeightsFromDistributed};
use rljob_protocol::version::Version;

use super::{begin, book, verify_and_continue};
use crate::coordinator::Coordinator;
use crate::engines::{EngineError, may_control};

/// The transport of a learner on CPUs.
const BACKEND: &str = "gloo";

/// A sender that is ready.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Version of the weights.
    pub version: Version,
    /// Address of its store.
    pub address: String,
    /// Port of its store.
    pub port: u16,
    /// What it sends, in order.
    pub tensors: Vec<TensorInfo>,
}

/// Starts a sender's transfers; each books its own end.
pub fn start(coordinator: &Arc<Coordinator>, sender: &Arc<Sender>, transfers: Vec<Transfer>) {
    for transfer in transfers {
        let (coordinator, sender) = (Arc::clone(coordinator), Arc::clone(sender));
        tokio::spawn(async move {
            let stop = coordinator.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = receive(&coordinator, &sender, &transfer) => {}
            }
        });
    }
}

async fn receive(coordinator: &Coordinator, sender: &Sender, transfer: &Transfer) {
    if let Some(target) = begin(coordinator, &transfer.engine, sender.version) {
        let result = target.or_lost(update(coordinator, &target.url, sender, transfer)).await;
        book(coordinator, &transfer.engine, sender.version, result).await;
    }
    if let Err(error) = coordinator.change(|run, _| run.transfer_over(transfer)).await {
        tracing::error!(error = %crate::error_line(&error), "failed to book the end of a transfer");
    }
}

async fn update(
    coordinator: &Coordinator,
    url: &str,
    sender: &Sender,
    transfer: &Transfer,
) -> Result<(), EngineError> {
    let client = &coordinator.fleet.client;
    may_control(coordinator.store.fence()).await?;
    client.pause(url).await?;
    may_control(coordinator.store.fence()).await?;
    let group = InitWeightsUpdateGroup {
        master_address: sender.address.clone(),
        master_port: sender.port,
        rank_offset: 1,
        world_size: transfer.world_size,
        group_name: transfer.group.clone(),
        backend: BACKEND.to_owned(),
    };
    client.init_group(url, &group).await?;
    may_control(coordinator.store.fence()).await?;
    let body = UpdateWeightsFromDistributed {
        names: sender.tensors.iter().map(|tensor| tensor.name.clone()).collect(),
        dtypes: sender.tensors.iter().map(|tensor| tensor.dtype.clone()).collect(),
        shapes: sender.tensors.iter().map(|tensor| tensor.shape.clone()).collect(),
        group_name: transfer.group.clone(),
        flush_cache: true,
        weight_version: sender.version.to_string(),
    };
    client.update_from_distributed(url, &body).await?;
    client.destroy_group(url, &transfer.group).await?;
    verify_and_continue(coordinator, url, sender.version).await
}
