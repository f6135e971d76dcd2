//! Engines whose sender died in a broadcast over NCCL.
//!
//! NCCL does not tell a receiver that its sender has ended: the engine's GPU waits for it for ever,
//! and its scheduler with it, although its server responds. When an attempt of the learners ends,
//! all engines are probed at once, so that a stuck one is replaced while the learners restart.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::WeightSync;
use crate::core::Run;
use crate::engines::EngineError;
use crate::engines::slot::Slot;

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
            for engine in sync.fleet.views() {
                let sync = Arc::clone(&sync);
                tokio::spawn(async move { probe(&sync, &engine.name).await });
            }
        }
        running = now;
    }
}

/// Marks the engine as hung if its scheduler does not respond. A process that is lost meanwhile is
/// not judged.
async fn probe(sync: &WeightSync, engine: &str) {
    let target = |slot: &mut Slot| (slot.url.clone(), slot.lost.clone());
    let Some((url, lost)) = sync.fleet.update(engine, target) else { return };
    let responds = tokio::select! {
        () = lost.cancelled() => return,
        responds = sync.fleet.client.scheduler_responds(&url) => responds,
    };
    let Some(error) = responds.err().filter(EngineError::is_hang) else { return };
    let error = crate::error_line(&error);
    tracing::warn!(engine, error, "the engine waits for learners that ended; it is replaced");
    sync.fleet.update(engine, |slot| {
        if !lost.is_cancelled() {
            slot.mark_hung(sync.clock.now());
        }
    });
}
