//! Reports of steps to coordinators of this release and of release 0.1.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers")]

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::Mutex;
use rljob_learner::coordinator_client::CoordinatorClient;
use rljob_protocol::learner::StepReport;
use rljob_protocol::metrics::StepMetrics;
use rljob_protocol::peer::{PROTOCOL_HEADER, PROTOCOL_VERSION};
use rljob_storage::RunStore;
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use serde_json::Value;

/// A coordinator that announces a version, and rejects new names if it is 1.
#[derive(Clone)]
struct Coordinator {
    announced: Option<u32>,
    bodies: Arc<Mutex<Vec<Value>>>,
}

async fn step(
    State(coordinator): State<Coordinator>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> impl IntoResponse {
    assert_eq!(headers[PROTOCOL_HEADER], PROTOCOL_VERSION.to_string());
    let is_new = body["metrics"].get("reward/format").is_some();
    coordinator.bodies.lock().push(body);
    let mut announced = HeaderMap::new();
    if let Some(version) = coordinator.announced {
        announced.insert(PROTOCOL_HEADER, version.into());
    }
    let status = match (coordinator.announced, is_new) {
        (None, true) => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::NO_CONTENT,
    };
    (status, announced)
}

/// Bodies that a learner sends for one step.
fn reported(announced: Option<u32>) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("learner"), "secret").unwrap();
    let coordinator = Coordinator { announced, bodies: Arc::default() };
    let routes =
        Router::new().route("/v1/steps/{step}", post(step)).with_state(coordinator.clone());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(axum::serve(listener, routes).into_future());
    let resolver = CoordinatorResolver::of(RunStore::Folder(folder.path().to_owned()));
    let token = folder.path().join("learner");
    let client = CoordinatorClient::new(&url, resolver, token, None, 0, 1).unwrap();
    let metrics = StepMetrics::with_scalars(1, [("loss", 0.5), ("reward/format", 1.0)]);
    client.report_step(&StepReport { attempt: 1, metrics, spans: Vec::new() }).unwrap();
    coordinator.bodies.lock().clone()
}

#[test]
fn a_coordinator_of_this_release_receives_every_metric() {
    let bodies = reported(Some(PROTOCOL_VERSION));
    assert_eq!(bodies.len(), 1);
    assert_eq!(bodies[0]["metrics"]["reward/format"], 1);
}

#[test]
fn a_coordinator_of_release_0_1_receives_the_metrics_that_it_accepts() {
    let bodies = reported(None);
    assert_eq!(bodies.len(), 2, "the first one is rejected");
    assert_eq!(bodies[1]["metrics"].get("reward/format"), None);
    assert_eq!(bodies[1]["metrics"]["tokensPerSecond"], 0);
}
