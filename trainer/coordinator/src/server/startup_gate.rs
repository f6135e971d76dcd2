//! What a coordinator serves before it knows its epoch: it is alive, and it waits to be told.
//! Nothing of the run directory is touched until then, since a coordinator that nobody speaks to
//! any more must leave it alone.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{get, put};
use axum::{Json, Router, middleware};
use rljob_protocol::desired::Desired;
use rljob_protocol::status::CoordinatorStatus;
use tokio::sync::watch;

use super::error::ApiError;
use super::{MAX_BODY, auth, operator};
use crate::coordinator::Coordinator;
use crate::tokens::Token;

/// How long who speaks first is kept waiting while the run is opened.
const HOLD: Duration = Duration::from_secs(4);

/// The two sides of the wait.
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
    /// The routes until the run is open: `GET /healthz`, `PUT /v1/desired`.
    pub fn router(&self, operator: Token) -> Router {
        let desired =
            put(desired).route_layer(middleware::from_fn_with_state(operator, auth::bearer));
        let routes =
            Router::new().route("/healthz", get(operator::health)).route("/v1/desired", desired);
        routes
            .fallback(async || ApiError::Closed)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(self.clone())
    }

    /// The epoch that the operator named first.
    pub async fn asked(&self) -> u64 {
        let mut asked = self.asked.subscribe();
        // The sender is here, so that the wait ends with a value or not at all.
        asked.wait_for(Option::is_some).await.ok().and_then(|epoch| *epoch).unwrap_or_default()
    }

    /// The run is open.
    pub fn open(&self, coordinator: Arc<Coordinator>) {
        self.opened.send_replace(Some(coordinator));
    }
}

async fn desired(
    State(gate): State<StartupGate>,
    Json(desired): Json<Desired>,
) -> Result<Json<CoordinatorStatus>, ApiError> {
    let mut opened = gate.opened.subscribe();
    gate.asked.send_replace(Some(desired.epoch));
    let waited = tokio::time::timeout(HOLD, opened.wait_for(Option::is_some)).await;
    let coordinator = waited.ok().and_then(Result::ok).and_then(|opened| opened.clone());
    operator::desired(State(coordinator.ok_or(ApiError::Closed)?), Json(desired)).await
}
