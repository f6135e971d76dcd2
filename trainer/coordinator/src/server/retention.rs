//! What a run keeps: removes old checkpoints, exports, published weights and samples.

use super::error::ApiError;
use crate::coordinator::Coordinator;
use crate::persistence::{checkpoints, exports};
use crate::sync::folders;

/// Removes checkpoints that the policy does not keep, and the samples that no kept one needs. What
/// fails is logged and tried at the next checkpoint.
pub async fn prune_checkpoints(coordinator: &Coordinator, attempt: u32) -> Result<(), ApiError> {
    let known = coordinator
        .run
        .read(|run| Some((run.desired()?.checkpoint.keep_last, run.checkpoints().clone())))
        .await;
    let (Some((keep_last, usable)), run_store) = (known, coordinator.run_store.clone()) else {
        return Ok(());
    };
    let kept = match tokio::task::spawn_blocking(move || {
        checkpoints::prune(&run_store, &usable, keep_last, attempt)
    })
    .await
    {
        Ok(Ok(kept)) => kept,
        Ok(Err(error)) => {
            tracing::warn!(error = %crate::error_line(&error), "failed to remove old checkpoints");
            return Ok(());
        }
        Err(_) => return Ok(()),
    };
    let oldest = kept.first().map_or(0, |version| version.step);
    let in_run = kept.clone();
    coordinator
        .journal
        .call(move |journal| {
            let gone = journal
                .checkpoints()?
                .into_iter()
                .map(|checkpoint| checkpoint.version)
                .filter(|version| !kept.contains(version));
            gone.collect::<Vec<_>>()
                .into_iter()
                .try_for_each(|version| journal.drop_checkpoint(version))?;
            journal.prune_through(oldest)
        })
        .await?;
    if let Err(error) = coordinator.journal.tidy().await {
        tracing::warn!(error = %crate::error_line(&error), "failed to remove old samples from \
            the bucket");
    }
    Ok(coordinator.run.change(|run, _| run.set_checkpoints(in_run)).await?)
}

/// Removes weights that engines have replaced.
pub async fn prune_folders(coordinator: &Coordinator) {
    let directory = coordinator.config.run_directory.clone();
    if let Ok(Err(error)) = tokio::task::spawn_blocking(move || folders::prune(&directory)).await {
        tracing::warn!(%error, "failed to remove old published weights");
    }
}

/// Removes exports that the policy does not keep.
pub async fn prune_exports(coordinator: &Coordinator) {
    let Some(keep_last) =
        coordinator.run.read(|run| run.desired().map(|desired| desired.checkpoint.keep_last)).await
    else {
        return;
    };
    let run_store = coordinator.run_store.clone();
    if let Ok(Err(error)) =
        tokio::task::spawn_blocking(move || exports::prune(&run_store, keep_last)).await
    {
        tracing::warn!(error = %crate::error_line(&error), "failed to remove old exports");
    }
}
