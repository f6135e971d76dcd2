//! Weight sync by broadcast: a sender has staged its copy and hosts a store; each of its engines
//! receives in a separate process group.
//!
//! ```text
//!  first:   join the group ──▶ pause ──▶ receive bucket by bucket ──▶ check version ──▶ resume
//!  later:                      pause ──▶ …         in the same group
//!  failure: leave the group; the next broadcast joins one with another name
//! ```
//!
//! The calls for all engines of a sender run concurrently, since the sender serves group after
//! group and must find each engine there.

use std::sync::Arc;
use std::time::Duration;

use rljob_protocol::learner::{TensorInfo, Transfer};
use rljob_protocol::probe::WeightProbe;
use rljob_protocol::sglang::{
    FLATTENED_BUCKET, InitWeightsUpdateGroup, UpdateWeightsFromDistributed,
};
use rljob_protocol::version::Version;
use tokio_util::sync::CancellationToken;

use super::phases::Phase;
use super::{Target, WeightSync, begin, book, deadline, later, pause, verify_and_continue};
use crate::core::instruct::KeptGroup;
use crate::engines::{EngineClient, EngineError, check_epoch};

const NCCL: &str = "nccl";
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Backend of the process groups of engines with `gpus` GPUs. Both ends must have the same.
pub fn backend(gpus: u32) -> &'static str {
    if gpus > 0 { NCCL } else { "gloo" }
}

/// A sender that is ready.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Its attempt.
    pub attempt: u32,
    /// Version of the weights.
    pub version: Version,
    /// Address of its store.
    pub address: String,
    /// Port of its store.
    pub port: u16,
    /// Tensors in the order of the broadcast.
    pub tensors: Vec<TensorInfo>,
    /// Number of tensors of each bucket; empty if every tensor is a broadcast.
    pub buckets: Vec<u32>,
    /// Elements that engines hold afterwards.
    pub probes: Vec<WeightProbe>,
}

impl Sender {
    /// Whether the buckets have exactly the tensors.
    pub fn is_consistent(&self) -> bool {
        let total = self.buckets.iter().map(|count| u64::from(*count)).sum::<u64>();
        self.buckets.is_empty()
            || total == self.tensors.len() as u64 && self.buckets.iter().all(|count| *count > 0)
    }

    /// Whether the sender stays in the group after a broadcast.
    fn keeps_groups(&self) -> bool {
        !self.buckets.is_empty()
    }

    /// One request per bucket, in order. The last one drops the cache, unless it is kept, and sets
    /// the version, so that an engine with a part of the weights does not report it.
    fn requests(&self, group: &str, keeps_cache: bool) -> Vec<UpdateWeightsFromDistributed> {
        let format = (!self.buckets.is_empty()).then_some(FLATTENED_BUCKET);
        let whole = [self.tensors.len() as u32];
        let counts = if self.buckets.is_empty() { &whole } else { self.buckets.as_slice() };
        let mut rest = self.tensors.as_slice();
        let request = |count: &u32| {
            let (bucket, after) = rest.split_at_checked(*count as usize).unwrap_or((rest, &[]));
            rest = after;
            let is_last = after.is_empty();
            UpdateWeightsFromDistributed {
                names: bucket.iter().map(|tensor| tensor.name.clone()).collect(),
                dtypes: bucket.iter().map(|tensor| tensor.dtype.clone()).collect(),
                shapes: bucket.iter().map(|tensor| tensor.shape.clone()).collect(),
                group_name: group.to_owned(),
                flush_cache: is_last && !keeps_cache,
                weight_version: is_last.then(|| self.version.to_string()),
                load_format: format.map(ToOwned::to_owned),
            }
        };
        counts.iter().map(request).collect()
    }
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
        let result = target.or_lost(update(sync, &target, sender, transfer)).await;
        settle_group(sync, &target, sender, transfer, result.as_ref().err()).await;
        book(sync, &target, sender.version, result).await;
    }
    if let Err(error) = sync.run.change(|run, _| run.transfer_over(transfer)).await {
        tracing::error!(
            error = %crate::error_line(&error), "failed to record the end of a transfer",
        );
    }
    later::check(sync, &transfer.engine, sender.version, &sender.probes).await;
}

async fn update(
    sync: &WeightSync,
    target: &Target,
    sender: &Sender,
    transfer: &Transfer,
) -> Result<(), EngineError> {
    let (client, url) = (&sync.fleet.client, &target.url);
    check_epoch(&sync.fence).await?;
    if transfer.kept {
        check_group(client, target, transfer).await?;
    } else {
        join_group(sync, target, sender, transfer).await?;
        target.phases.end(Phase::Join, sync.clock.now());
    }
    pause::pause(sync, target).await?;
    check_epoch(&sync.fence).await?;
    for body in sender.requests(&transfer.group, sync.keeps_cache()) {
        client.update_from_distributed(url, &body, deadline::of_bucket(&body)).await?;
    }
    if !sender.keeps_groups() {
        client.destroy_group(url, &transfer.group).await?;
    }
    target.phases.end(Phase::Transfer, sync.clock.now());
    verify_and_continue(sync, target, sender.version, &sender.probes).await
}

/// Checks that the engine is still the process that joined the group: SGLang exits at an update in
/// a group that it does not know.
async fn check_group(
    client: &EngineClient,
    target: &Target,
    transfer: &Transfer,
) -> Result<(), EngineError> {
    let joined = target.group.as_ref().is_some_and(|group| group.name == transfer.group);
    if joined && Some(client.model_info(&target.url).await?.weight_version) == target.label {
        return Ok(());
    }
    leave_group(client, &target.url, &transfer.group).await;
    Err(EngineError::Aborted("the engine restarted and has left its process group".to_owned()))
}

/// Lets the engine join the sender's group, while it generates. An engine whose previous sender was
/// killed in a broadcast over NCCL waits for it on its GPU for ever, although it has reported
/// success; it would not join either.
async fn join_group(
    sync: &WeightSync,
    target: &Target,
    sender: &Sender,
    transfer: &Transfer,
) -> Result<(), EngineError> {
    if sync.backend == NCCL {
        sync.fleet.client.scheduler_responds(&target.url).await?;
    }
    if let Some(old) = &target.group {
        leave_group(&sync.fleet.client, &target.url, &old.name).await;
    }
    let group = InitWeightsUpdateGroup {
        master_address: sender.address.clone(),
        master_port: sender.port,
        rank_offset: 1,
        world_size: transfer.world_size,
        group_name: transfer.group.clone(),
        backend: sync.backend.to_owned(),
    };
    sync.fleet.client.init_group(&target.url, &group).await
}

/// Records the group for later broadcasts, or leaves it after a failure: groups are out of step
/// then.
async fn settle_group(
    sync: &WeightSync,
    target: &Target,
    sender: &Sender,
    transfer: &Transfer,
    failure: Option<&EngineError>,
) {
    match failure {
        None if sender.keeps_groups() => {
            let group = KeptGroup {
                name: transfer.group.clone(),
                attempt: sender.attempt,
                sender: transfer.sender,
            };
            sync.fleet.update(&transfer.engine, |slot| slot.group = Some(group));
        }
        Some(
            EngineError::Rejected { .. }
            | EngineError::WrongWeights { .. }
            | EngineError::WrongElement { .. },
        ) => {
            leave_group(&sync.fleet.client, &target.url, &transfer.group).await;
        }
        // An engine that does not respond cannot leave.
        None | Some(_) => {}
    }
}

/// Lets the engine leave a group, if it responds and is in it.
async fn leave_group(client: &EngineClient, url: &str, group: &str) {
    match tokio::time::timeout(LEAVE_TIMEOUT, client.destroy_group(url, group)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let error = crate::error_line(&error);
            tracing::debug!(url, group, error, "the engine did not leave a process group");
        }
        Err(_) => tracing::debug!(url, group, "the engine did not leave a process group in time"),
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::learner::TensorInfo;
    use rljob_protocol::version::Version;

    use super::{Sender, UpdateWeightsFromDistributed};

    fn sender(buckets: &[u32]) -> Sender {
        let tensor = |name: &str| TensorInfo {
            name: name.to_owned(),
            dtype: "bfloat16".to_owned(),
            shape: vec![2],
        };
        Sender {
            attempt: 0,
            version: Version { step: 4, attempt: 0 },
            address: "10.0.0.1".to_owned(),
            port: 1,
            tensors: ["a", "b", "c"].map(tensor).to_vec(),
            buckets: buckets.to_vec(),
            probes: Vec::new(),
        }
    }

    #[test]
    fn the_last_bucket_drops_the_cache_unless_it_is_kept_and_sets_the_version() {
        let requests = |buckets: &[u32], keeps_cache: bool| {
            let written = sender(buckets).requests("g", keeps_cache).into_iter().map(|request| {
                let UpdateWeightsFromDistributed {
                    names,
                    flush_cache,
                    weight_version,
                    load_format,
                    ..
                } = request;
                (names.concat(), flush_cache, weight_version, load_format)
            });
            written.collect::<Vec<_>>()
        };
        let (version, format) =
            (Some("step-4.attempt-0".to_owned()), Some("flattened_bucket".to_owned()));
        assert_eq!(requests(&[], false), [("abc".to_owned(), true, version.clone(), None)]);
        assert_eq!(requests(&[], true), [("abc".to_owned(), false, version.clone(), None)]);
        assert_eq!(
            requests(&[2, 1], false),
            [
                ("ab".to_owned(), false, None, format.clone()),
                ("c".to_owned(), true, version, format)
            ]
        );
    }

    #[test]
    fn buckets_have_exactly_the_tensors() {
        let consistent = [&[][..], &[3], &[2, 1], &[2], &[2, 2], &[3, 0]]
            .map(|buckets| sender(buckets).is_consistent());
        assert_eq!(consistent, [true, true, true, false, false, false]);
    }
}
