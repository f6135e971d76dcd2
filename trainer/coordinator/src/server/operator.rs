//! The operator's side: what is wanted, what is.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use rljob_protocol::desired::Desired;
use rljob_protocol::status::CoordinatorStatus;

use super::error::Refused;
use crate::coordinator::Coordinator;
use crate::store::StoreError;

/// `PUT /v1/desired`
pub async fn desired(
    State(coordinator): State<Arc<Coordinator>>,
    Json(desired): Json<Desired>,
) -> Result<Json<CoordinatorStatus>, Refused> {
    let (engines, epoch, fence) =
        (desired.engines.clone(), desired.epoch, coordinator.store.fence().clone());
    tokio::task::spawn_blocking(move || fence.raise(epoch)).await.map_err(StoreError::from)??;
    coordinator.change(|run, _| run.desire(desired)).await??;
    coordinator.fleet.set(&engines);
    Ok(Json(coordinator.status().await))
}

/// `GET /v1/status`
pub async fn status(State(coordinator): State<Arc<Coordinator>>) -> Json<CoordinatorStatus> {
    Json(coordinator.status().await)
}

/// `GET /healthz`: the process serves.
pub async fn health() -> StatusCode {
    StatusCode::OK
}

/// `GET /metrics`
pub async fn metrics(State(coordinator): State<Arc<Coordinator>>) -> Result<String, Refused> {
    Ok(coordinator.metrics.render(&coordinator.status().await)?)
}
