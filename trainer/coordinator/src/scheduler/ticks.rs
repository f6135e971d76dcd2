//! The run advances with time; a forming learner group restores from verified checkpoints.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rljob_protocol::version::Version;
use rljob_storage::StorageError;

use super::failure::{fail, retry_delay};
use crate::coordinator::Coordinator;
use crate::core::Run;
use crate::persistence::checkpoints::Verifier;
use crate::work_error::WorkError;

/// Interval between two ticks of the run.
const TICK: Duration = Duration::from_millis(250);

/// Advances the run with time until the process stops.
pub async fn tick(coordinator: Arc<Coordinator>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut verifier, mut failures) = (Verifier::default(), 0_u32);
    loop {
        let next = async {
            if let Some(earlier) = failures.checked_sub(1) {
                tokio::time::sleep(retry_delay(earlier)).await;
            }
            ticks.tick().await
        };
        tokio::select! {
            () = coordinator.stop.cancelled() => return,
            _ = next => {}
        }
        let succeeded = tick_once(&coordinator, &mut verifier).await;
        failures = if succeeded { 0 } else { failures.saturating_add(1) };
    }
}

/// Advances the run once. Returns false after a failure, which is logged.
async fn tick_once(coordinator: &Coordinator, verifier: &mut Verifier) -> bool {
    let forming = coordinator.run.read(Run::awaits_verification).await;
    // A group restores from checkpoints found in the run store, not from reported ones.
    let complete = if forming { usable_checkpoints(coordinator, verifier).await } else { None };
    let verified = complete.is_some() || !forming;
    let changed = coordinator.run.change(|run, now| {
        if let Some(complete) = complete {
            run.checkpoints_verified(complete);
        }
        run.tick(now);
    });
    let recorded = changed.await.inspect_err(|error| {
        tracing::error!(
            error = %crate::error_line(error),
            "failed to record the run's state; retrying"
        );
    });
    verified && recorded.is_ok()
}

/// Checkpoints that a group may restore. Rejected ones are logged and journaled.
async fn usable_checkpoints(
    coordinator: &Coordinator,
    verifier: &mut Verifier,
) -> Option<BTreeSet<Version>> {
    let (run_store, mut taken) = (coordinator.run_store.clone(), std::mem::take(verifier));
    let verified = tokio::task::spawn_blocking(move || {
        let found = taken.usable(&run_store);
        (taken, found)
    });
    let (returned, found) = match verified.await {
        Ok(verified) => verified,
        Err(error) => {
            if error.is_panic() {
                fail(coordinator, &WorkError::from(error)).await;
            }
            return None;
        }
    };
    *verifier = returned;
    let warn = |error: &StorageError| {
        tracing::warn!(
            error = %crate::error_line(error),
            "failed to verify checkpoints; retrying"
        );
    };
    let found = found.inspect_err(warn).ok()?;
    for rejected in found.rejected {
        let used = found.usable.last().map_or_else(
            || "the run starts from its beginning".to_owned(),
            |version| format!("{version} is used"),
        );
        tracing::warn!("rejected checkpoint {}: {}; {used}", rejected.version, rejected.detail);
        let detail = serde_json::json!({"version": rejected.version, "detail": rejected.detail});
        coordinator.recorder.event("CheckpointRejected", detail).await;
    }
    Some(found.usable)
}
