//! Startup gate: serves health, waits for the operator to assign an epoch, and reports faults of
//! the volume that delay the start. It must not touch the run directory, since the operator may
//! have replaced this coordinator.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::HeaderMap;
use axum::routing::{get, put};
use axum::{Json, Router, middleware};
use rljob_protocol::desired::Desired;
use rljob_protocol::status::CoordinatorStatus;
use tokio::sync::watch;

use super::error::ApiError;
use super::{MAX_BODY, auth, operator, protocol};
use crate::coordinator::Coordinator;
use crate::tokens::Token;

/// Time for which the first request is held while the run opens.
const HOLD: Duration = Duration::from_secs(4);

/// State of the run at its start.
#[derive(Clone, Default)]
enum Opening {
    #[default]
    InProgress,
    /// The last attempt failed with this fault of the volume; the next one follows.
    Delayed(String),
    Open(Arc<Coordinator>),
}

/// Hands the assigned epoch to the process, and the open run to held requests.
#[derive(Clone, Default)]
pub struct StartupGate {
    asked: watch::Sender<Option<u64>>,
    opening: watch::Sender<Opening>,
}

impl StartupGate {
    /// The routes without authentication until the run is open: `GET /healthz`.
    pub fn plain_router() -> Router {
        Router::new()
            .route("/healthz", get(operator::health))
            .fallback(async || ApiError::Unauthenticated)
            .layer(middleware::map_response(protocol::announce))
    }

    /// The routes until the run is open: `GET /healthz`, `PUT /v1/desired`, `GET /v1/status`.
    pub fn router(&self, operator: Token) -> Router {
        let of_operator = Router::new()
            .route("/v1/desired", put(desired))
            .route("/v1/status", get(status))
            .route_layer(middleware::from_fn_with_state(operator, auth::bearer));
        of_operator
            .route("/healthz", get(operator::health))
            .fallback(async || ApiError::Closed)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .layer(middleware::map_response(protocol::announce))
            .with_state(self.clone())
    }

    /// Waits for the first epoch that the operator assigns.
    pub async fn asked(&self) -> u64 {
        let mut asked = self.asked.subscribe();
        // `self` holds the sender, so the channel cannot close.
        asked.wait_for(Option::is_some).await.ok().and_then(|epoch| *epoch).unwrap_or_default()
    }

    /// A fault of the volume delays the opening of the run.
    pub fn report_fault(&self, fault: String) {
        self.opening.send_replace(Opening::Delayed(fault));
    }

    /// The run is open.
    pub fn open(&self, coordinator: Arc<Coordinator>) {
        self.opening.send_replace(Opening::Open(coordinator));
    }
}

/// Status of a coordinator that cannot open the run yet. It acts under no epoch, so that its step
/// and its phase count for nothing.
fn delayed(fault: String) -> Json<CoordinatorStatus> {
    Json(CoordinatorStatus { journal_failure: Some(fault), ..CoordinatorStatus::default() })
}

async fn desired(
    State(gate): State<StartupGate>,
    headers: HeaderMap,
    Json(desired): Json<Desired>,
) -> Result<Json<CoordinatorStatus>, ApiError> {
    let mut opening = gate.opening.subscribe();
    gate.asked.send_replace(Some(desired.epoch));
    let is_known = |opening: &Opening| !matches!(opening, Opening::InProgress);
    let waited = tokio::time::timeout(HOLD, opening.wait_for(is_known)).await;
    match waited.ok().and_then(Result::ok).map(|opening| opening.clone()) {
        Some(Opening::Open(coordinator)) => {
            operator::desired(State(coordinator), headers, Json(desired)).await
        }
        Some(Opening::Delayed(fault)) => Ok(delayed(fault)),
        Some(Opening::InProgress) | None => Err(ApiError::Closed),
    }
}

async fn status(
    State(gate): State<StartupGate>,
    headers: HeaderMap,
) -> Result<Json<CoordinatorStatus>, ApiError> {
    let opening = gate.opening.borrow().clone();
    match opening {
        Opening::Open(coordinator) => Ok(operator::status(State(coordinator), headers).await),
        Opening::Delayed(fault) => Ok(delayed(fault)),
        Opening::InProgress => Err(ApiError::Closed),
    }
}
