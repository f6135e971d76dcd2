//! Startup gate: serves health and waits for the operator to assign an epoch. It must not touch the
//! run directory, since the operator may have replaced this coordinator.

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

/// Hands the assigned epoch to the process, and the open run to held requests.
#[derive(Clone)]
pub struct StartupGate {
    asked: watch::Sender<Option<u64>>,
    opened: watch::Sender<Option<Arc<Coordinator>>>,
}

impl Default for StartupGate {
    fn default() -> Self {
        Self { asked: watch::channel(None).0, opened: watch::channel(None).0 }
    }
}

impl StartupGate {
    /// The routes without authentication until the run is open: `GET /healthz`.
    pub fn plain_router() -> Router {
        Router::new()
            .route("/healthz", get(operator::health))
            .fallback(async || ApiError::Unauthenticated)
            .layer(middleware::map_response(protocol::announce))
    }

    /// The routes until the run is open: `GET /healthz`, `PUT /v1/desired`.
    pub fn router(&self, operator: Token) -> Router {
        let desired =
            put(desired).route_layer(middleware::from_fn_with_state(operator, auth::bearer));
        let routes =
            Router::new().route("/healthz", get(operator::health)).route("/v1/desired", desired);
        routes
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

    /// The run is open.
    pub fn open(&self, coordinator: Arc<Coordinator>) {
        self.opened.send_replace(Some(coordinator));
    }
}

async fn desired(
    State(gate): State<StartupGate>,
    headers: HeaderMap,
    Json(desired): Json<Desired>,
) -> Result<Json<CoordinatorStatus>, ApiError> {
    let mut opened = gate.opened.subscribe();
    gate.asked.send_replace(Some(desired.epoch));
    let waited = tokio::time::timeout(HOLD, opened.wait_for(Option::is_some)).await;
    let coordinator = waited.ok().and_then(Result::ok).and_then(|opened| opened.clone());
    operator::desired(State(coordinator.ok_or(ApiError::Closed)?), headers, Json(desired)).await
}
