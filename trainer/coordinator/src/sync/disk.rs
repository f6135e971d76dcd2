//! Weight sync through the run directory: each engine that lacks a required version reads its
//! folder. Engines that join later or recover are updated without the learners. With sampling
//! ahead, updates start when the folder is complete. Engines that only evaluate get the weights of
//! the evaluation in progress, whatever the method.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rljob_protocol::probe::WeightProbe;
use rljob_protocol::sglang::UpdateWeightsFromDisk;
use rljob_protocol::version::Version;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::phases::Phase;
use super::{Target, WeightSync, begin, book, later, pause, probes, verify_and_continue};
use crate::engines::{EngineError, check_epoch};

/// Cooling engines become usable by time alone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Keeps engines at the wanted version until `stop`.
pub async fn run(sync: Arc<WeightSync>, stop: CancellationToken) {
    let (mut run_changes, mut fleet_changes) = (sync.run.changes(), sync.fleet.changes());
    let mut updates = JoinSet::new();
    loop {
        start_updates(&sync, &mut updates).await;
        tokio::select! {
            () = stop.cancelled() => return,
            _ = run_changes.changed() => {}
            _ = fleet_changes.changed() => {}
            // A panic of an update ends this task, and with it the process.
            Some(ended) = updates.join_next() => {
                if let Err(error) = ended
                    && let Ok(panic) = error.try_into_panic()
                {
                    std::panic::resume_unwind(panic);
                }
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

async fn start_updates(sync: &Arc<WeightSync>, updates: &mut JoinSet<()>) {
    let Some((version, folder)) = sync.purpose.weights_wanted(&sync.run).await else { return };
    for engine in sync.fleet.views() {
        if !engine.lacks(version) {
            continue;
        }
        let Some(target) = begin(sync, &engine.name, version) else { continue };
        let (sync, folder) = (Arc::clone(sync), folder.clone());
        updates.spawn(async move {
            let probes = elements(&folder).await;
            let update = update(&sync, &target, version, (&folder, &probes));
            let result = target.or_lost(update).await;
            book(&sync, &target, version, result).await;
            later::check(&sync, &engine.name, version, &probes).await;
        });
    }
}

/// The elements in a folder. Without them its weights are not checked.
async fn elements(folder: &Path) -> Vec<WeightProbe> {
    let path = folder.to_owned();
    match tokio::task::spawn_blocking(move || probes::of_folder(&path)).await {
        Ok(Ok(probes)) => probes,
        Ok(Err(error)) => {
            let folder = folder.display();
            tracing::warn!(%folder, %error, "failed to read the elements to check weights by");
            Vec::new()
        }
        Err(error) => {
            tracing::warn!(%error, "failed to read the elements to check weights by");
            Vec::new()
        }
    }
}

async fn update(
    sync: &WeightSync,
    target: &Target,
    version: Version,
    (folder, probes): (&Path, &[WeightProbe]),
) -> Result<(), EngineError> {
    let (client, url) = (&sync.fleet.client, &target.url);
    pause::pause(sync, target).await?;
    check_epoch(&sync.fence).await?;
    let body = UpdateWeightsFromDisk {
        model_path: folder.display().to_string(),
        weight_version: version.to_string(),
        flush_cache: !sync.keeps_cache(),
    };
    client.update_from_disk(url, &body).await?;
    target.phases.end(Phase::Transfer, sync.clock.now());
    verify_and_continue(sync, target, version, probes).await
}
