//! Simulated coordinators of all jobs: one HTTP server that distinguishes jobs by their tokens.
//! Runs make steps until `/end` is called.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use parking_lot::Mutex;
use rljob_crds::names::COORDINATOR_PORT;
use rljob_protocol::desired::Desired;
use rljob_protocol::status::{CoordinatorStatus, EngineCondition, Phase};
use rljob_protocol::version::Version;
use serde_json::json;

/// Current and total steps of each run.
const STEPS: (u32, u32) = (2, 3);

#[derive(Clone, Default)]
struct Runs {
    desired: Arc<Mutex<HashMap<String, Desired>>>,
    ended: Arc<Mutex<bool>>,
}

/// Serves until the process is killed.
pub async fn serve() {
    let routes = Router::new()
        .route("/v1/desired", put(take))
        .route("/v1/status", get(status))
        .route("/end", post(|State(runs): State<Runs>| async move { *runs.ended.lock() = true }));
    let listener = tokio::net::TcpListener::bind(("0.0.0.0", COORDINATOR_PORT)).await.unwrap();
    axum::serve(listener, routes.with_state(Runs::default())).await.unwrap();
}

fn token(headers: &HeaderMap) -> String {
    headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned()
}

async fn take(State(runs): State<Runs>, headers: HeaderMap, Json(desired): Json<Desired>) {
    runs.desired.lock().insert(token(&headers), desired);
}

async fn status(
    State(runs): State<Runs>,
    headers: HeaderMap,
) -> Result<Json<CoordinatorStatus>, StatusCode> {
    let desired = runs
        .desired
        .lock()
        .get(&token(&headers))
        .cloned()
        .ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    let ended = *runs.ended.lock();
    let step = if ended { STEPS.1 } else { STEPS.0 };
    let version = Version { step: STEPS.0, attempt: 0 };
    let engine = |name: String| {
        serde_json::from_value(
            json!({"name": name, "state": EngineCondition::Ready, "version": version}),
        )
        .unwrap()
    };
    Ok(Json(CoordinatorStatus {
        epoch: Some(desired.epoch),
        generation: Some(desired.generation),
        phase: if ended { Phase::Finished } else { Phase::Running },
        attempt: 0,
        restarts: 0,
        last_failure: None,
        step,
        total_steps: STEPS.1,
        metrics: None,
        evaluation: None,
        supervisors: vec![],
        engines: desired
            .engines
            .into_iter()
            .map(|engine_endpoint| engine(engine_endpoint.name))
            .collect(),
        checkpoint: None,
        unsupported: None,
        download: None,
        reward_outage: None,
        activity: None,
    }))
}
