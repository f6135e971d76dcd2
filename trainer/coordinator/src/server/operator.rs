//! Operator API: desired state, status, health and metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use rljob_protocol::desired::Desired;
use rljob_protocol::status::CoordinatorStatus;

use super::error::ApiError;
use super::protocol::announced;
use crate::coordinator::Coordinator;
use crate::persistence::journal::shared::SharedJournalError;

/// `PUT /v1/desired`
pub async fn desired(
    State(coordinator): State<Arc<Coordinator>>,
    headers: HeaderMap,
    Json(desired): Json<Desired>,
) -> Result<Json<CoordinatorStatus>, ApiError> {
    let (engines, verifiers) = (desired.engines.clone(), desired.verifiers.clone());
    let further_engines = [
        (&coordinator.evaluation_fleet, desired.evaluation_engines.clone()),
        (&coordinator.fixed_fleets.reward, desired.reward_engines.clone()),
        (&coordinator.fixed_fleets.teacher, desired.teacher_engines.clone()),
    ];
    let (epoch, fence) = (desired.epoch, coordinator.journal.fence().clone());
    tokio::task::spawn_blocking(move || fence.raise(epoch))
        .await
        .map_err(SharedJournalError::from)??;
    coordinator.run.change(|run, _| run.set_desired(desired)).await??;
    coordinator.fleet.set(&engines);
    for (fleet, engines) in &further_engines {
        if let Some(fleet) = fleet {
            fleet.set(engines);
        }
    }
    if let Some(pods) = coordinator.verifier_pods() {
        pods.set(&verifiers);
    }
    Ok(Json(coordinator.status().await.for_peer(announced(&headers))))
}

/// `GET /v1/status`
pub async fn status(
    State(coordinator): State<Arc<Coordinator>>,
    headers: HeaderMap,
) -> Json<CoordinatorStatus> {
    Json(coordinator.status().await.for_peer(announced(&headers)))
}

/// `GET /healthz`: the process serves.
pub async fn health() -> StatusCode {
    StatusCode::OK
}

/// `GET /metrics`
pub async fn metrics(State(coordinator): State<Arc<Coordinator>>) -> Result<String, ApiError> {
    let (status, idle) = (coordinator.status().await, coordinator.fleet.idle());
    Ok(coordinator.recorder.metrics.render(&status, idle)?)
}
