//! Weight sync through the run directory: whenever rollouts or an evaluation need a published
//! version, every engine that lacks it reads the folder; where batches are sampled ahead, as soon
//! as it is there. Engines that come late or come back are served in the same way, without the
//! learners.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rljob_crds::job::WeightSyncMethod;
use rljob_protocol::sglang::UpdateWeightsFromDisk;
use rljob_protocol::version::Version;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{begin, book, verify_and_continue};
use crate::coordinator::Coordinator;
use crate::engines::{EngineError, may_control};

/// Cooling engines become usable by time alone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Keeps engines at the wanted version until `stop`.
pub async fn run(coordinator: Arc<Coordinator>, stop: CancellationToken) {
    if coordinator.config.spec.weight_sync.method != WeightSyncMethod::Disk {
        return;
    }
    let (mut run_changes, mut fleet_changes) = (coordinator.changes(), coordinator.fleet.changes());
    let mut updates = JoinSet::new();
    loop {
        start_updates(&coordinator, &mut updates).await;
        tokio::select! {
            () = stop.cancelled() => return,
            _ = run_changes.changed() => {}
            _ = fleet_changes.changed() => {}
            Some(_) = updates.join_next() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

async fn start_updates(coordinator: &Arc<Coordinator>, updates: &mut JoinSet<()>) {
    let wanted = coordinator
        .read(|run| run.weights_wanted().map(|(version, folder)| (version, folder.to_owned())))
        .await;
    let Some((version, folder)) = wanted else { return };
    for engine in coordinator.fleet.views() {
        if !engine.lacks(version) {
            continue;
        }
        let Some(target) = begin(coordinator, &engine.name, version) else { continue };
        let (coordinator, folder) = (Arc::clone(coordinator), folder.clone());
        updates.spawn(async move {
            let result = target.or_lost(update(&coordinator, &target.url, version, &folder)).await;
            book(&coordinator, &engine.name, version, result).await;
        });
    }
}

async fn update(
    coordinator: &Coordinator,
    url: &str,
    version: Version,
    folder: &Path,
) -> Result<(), EngineError> {
    let client = &coordinator.fleet.client;
    may_control(coordinator.store.fence()).await?;
    client.pause(url).await?;
    may_control(coordinator.store.fence()).await?;
    let body = UpdateWeightsFromDisk {
        model_path: folder.display().to_string(),
        weight_version: version.to_string(),
        flush_cache: true,
    };
    client.update_from_disk(url, &body).await?;
    verify_and_continue(coordinator, url, version).await
}
