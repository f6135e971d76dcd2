//! HTTP API of the coordinator.
//!
//! ```text
//!  operator token   PUT /v1/desired · GET /v1/status
//!  learner token    POST /v1/supervisors/NAME
//!                   GET /v1/instructions · /v1/attempts/ATTEMPT · /v1/batches/STEP
//!                   GET, POST /v1/validations/STEP
//!                   POST /v1/steps/STEP · /v1/checkpoints/STEP · /v1/weights · /v1/memory
//!                   GET /v1/groups/GROUP/instructions · /v1/groups/GROUP/batches/STEP
//!                   POST /v1/groups/GROUP/logprobs/STEP · /v1/groups/GROUP/memory
//!  no token         GET /healthz · GET /metrics, also without TLS
//! ```
//! The dashboard has its own server on a loopback address.
//! Clients prove their role with a certificate of the job; tokens distinguish roles once more.
//! Every response has the headers `rljob-protocol` and, except without a token, `rljob-epoch`.

mod auth;
pub mod dashboard;
mod error;
mod fenced;
mod group;
mod held;
mod learner;
mod memory;
mod operator;
mod protocol;
mod retention;
pub mod startup_gate;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post, put};
use axum::{Router, middleware};

use self::error::ApiError;
use crate::coordinator::Coordinator;
use crate::tokens::Token;

/// Largest body: the manifest of a large model's tensors is well below it.
const MAX_BODY: usize = 16 << 20;
/// Largest body with log-probabilities: those of 64 million tokens.
const MAX_LOGPROBS: usize = 256 << 20;

/// Routes without authentication: probes and metrics.
pub fn plain_router(coordinator: Arc<Coordinator>) -> Router {
    Router::new()
        .route("/healthz", get(operator::health))
        .route("/metrics", get(operator::metrics))
        .fallback(async || ApiError::Unauthenticated)
        .layer(middleware::map_response(protocol::announce))
        .with_state(coordinator)
}

/// All routes.
pub fn router(coordinator: Arc<Coordinator>, operator: Token, learner: Token) -> Router {
    let for_operator = Router::new()
        .route("/v1/desired", put(operator::desired))
        .route("/v1/status", get(operator::status))
        .route_layer(middleware::from_fn_with_state(operator, auth::bearer));
    let for_learners = Router::new()
        .route("/v1/supervisors/{name}", post(learner::supervisor))
        .route("/v1/instructions", get(learner::instructions))
        .route("/v1/attempts/{attempt}", get(learner::attempt))
        .route("/v1/batches/{step}", get(learner::batch))
        .route("/v1/steps/{step}", post(learner::step))
        .route("/v1/validations/{step}", get(learner::validation_data).post(learner::validation))
        .route("/v1/checkpoints/{step}", post(learner::checkpoint))
        .route("/v1/weights", post(learner::weights))
        .route("/v1/memory", post(memory::memory))
        .route("/v1/groups/{group}/instructions", get(group::instructions))
        .route("/v1/groups/{group}/batches/{step}", get(group::batch))
        .route(
            "/v1/groups/{group}/logprobs/{step}",
            post(group::logprobs).layer(DefaultBodyLimit::max(MAX_LOGPROBS)),
        )
        .route("/v1/groups/{group}/memory", post(memory::of_group))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&coordinator), protocol::required))
        .route_layer(middleware::from_fn_with_state(learner, auth::bearer));
    Router::new()
        .route("/healthz", get(operator::health))
        .route("/metrics", get(operator::metrics))
        .merge(
            for_operator.merge(for_learners).route_layer(middleware::from_fn_with_state(
                Arc::clone(&coordinator),
                fenced::fenced,
            )),
        )
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::map_response(protocol::announce))
        .with_state(coordinator)
}
