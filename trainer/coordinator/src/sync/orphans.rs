//! Engines whose sender died in a broadcast over NCCL.
//!
//! NCCL does not tell a receiver that its sender has ended: the engine's GPU waits for it for ever,
//! and its scheduler with it, although its server responds. When an attempt of the learners ends,
//! all engines are probed at once, so that a stuck one is replaced while the learners restart.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::WeightSync;
use crate::core::Run;

/// Probes the engines whenever an attempt of the learners ends, until `stop`.
pub async fn run(sync: Arc<WeightSync>, stop: CancellationToken) {
    let mut changes = sync.run.changes();
    let mut running = sync.run.read(Run::running_attempt).await;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
        let now = sync.run.read(Run::running_attempt).await;
        if running.is_some() && now != running {
            let engines = sync.fleet.views().into_iter().map(|view| view.name);
            futures::future::join_all(engines.map(|engine| probe(&sync, engine))).await;
        }
        running = now;
    }
}

/// Marks the engine as hung if its scheduler does not respond.
async fn probe(sync: &WeightSync, engine: String) {
    let Some(url) = sync.fleet.update(&engine, |slot| slot.url.clone()) else { return };
    let Err(error) = sync.fleet.client.scheduler_responds(&url).await else { return };
    if error.is_hang() {
        let error = crate::error_line(&error);
        tracing::warn!(engine, error, "the engine waits for learners that ended; it is replaced");
        sync.fleet.update(&engine, |slot| slot.mark_hung(sync.clock.now()));
    }
}
