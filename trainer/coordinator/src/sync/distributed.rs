//! Weight sync by broadcast: a sender has staged its copy and hosts a store; each of its engines
//! joins a separate process group and receives.
//!
//! The calls for all engines of a sender run concurrently, since the sender serves group after
//! group and must find each engine there.

use std::sync::Arc;

use rljob_protocol::learner::{TensorInfo, Transfer};
use rljob_protocol::sglang::{InitWeightsUpdateGroup, UpdateWeightsFromDistributed};
use rljob_protocol::version::Version;
use tokio_util::sync::CancellationToken;

use super::{WeightSync, begin, book, verify_and_continue};
use crate::engines::{EngineError, check_epoch};

/// Backend of the process groups of engines with `gpus` GPUs. Both ends must have the same.
pub fn backend(gpus: u32) -> &'static str {
    if gpus > 0 { "nccl" } else { "gloo" }
}

/// A sender that is ready.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Version of the weights.
    pub version: Version,
    /// Address of its store.
    pub address: String,
    /// Port of its store.
    pub port: u16,
    /// Tensors in the order of the broadcast.
    pub tensors: Vec<TensorInfo>,
}

/// Starts a sender's transfers; each books its own end.
pub fn start(
    sync: &Arc<WeightSync>,
    stop: &CancellationToken,
    sender: &Arc<Sender>,
    transfers: Vec<Transfer>,
) {
    for transfer in transfers {
        let (sync, sender, stop) = (Arc::clone(sync), Arc::clone(sender), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = receive(&sync, &sender, &transfer) => {}
            }
        });
    }
}

async fn receive(sync: &WeightSync, sender: &Sender, transfer: &Transfer) {
    if let Some(target) = begin(sync, &transfer.engine, sender.version) {
        let result = target.or_lost(update(sync, &target.url, sender, transfer)).await;
        book(sync, &transfer.engine, sender.version, result).await;
    }
    if let Err(error) = sync.run.change(|run, _| run.transfer_over(transfer)).await {
        tracing::error!(
            error = %crate::error_line(&error), "failed to record the end of a transfer",
        );
    }
}

async fn update(
    sync: &WeightSync,
    url: &str,
    sender: &Sender,
    transfer: &Transfer,
) -> Result<(), EngineError> {
    let client = &sync.fleet.client;
    check_epoch(&sync.fence).await?;
    client.pause(url).await?;
    check_epoch(&sync.fence).await?;
    let group = InitWeightsUpdateGroup {
        master_address: sender.address.clone(),
        master_port: sender.port,
        rank_offset: 1,
        world_size: transfer.world_size,
        group_name: transfer.group.clone(),
        backend: sync.backend.to_owned(),
    };
    client.init_group(url, &group).await?;
    check_epoch(&sync.fence).await?;
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
    verify_and_continue(sync, url, sender.version).await
}
