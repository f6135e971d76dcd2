//! HTTP routes, bodies and status codes of SGLang 0.5.12, as far as a run needs them.
//!
//! ```text
//!  open      /health  /health_generate  /metrics
//!  api key   /generate  /classify  /model_info  /get_model_info  /server_info
//!            /get_server_info  /v1/models  /v1/completions  /v1/chat/completions
//!  admin key /pause_generation  /continue_generation  /abort_request  /flush_cache
//!            /get_weights_by_name  /update_weights_from_disk  /init_weights_update_group
//!            /update_weights_from_distributed  /destroy_weights_update_group
//!            /update_weight_version
//! ```
//! With a certificate, open routes are served with and without TLS, the others with TLS only.
//! As in SGLang, /health does not respond with 200 while the engine is paused.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod auth;
mod classify;
mod control;
mod generate;
mod increments;
mod input;
mod neutral;
mod openai;
mod responses;
mod stream;
mod weights;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

pub use auth::Keys;

use crate::engine::Engine;

/// Maximum size of a request body in bytes: a prompt of a million token ids.
const BODY_LIMIT: usize = 8 << 20;

/// The routes without keys.
pub fn open_router(engine: Engine) -> Router {
    open().fallback(async || responses::detail(StatusCode::NOT_FOUND)).with_state(engine)
}

fn open() -> Router<Engine> {
    Router::new()
        .route("/health", get(control::health))
        .route("/health_generate", get(generate::health_generate))
        .route("/metrics", get(control::metrics))
}

/// All routes.
pub fn router(engine: Engine, keys: Keys) -> Router {
    let keys = Arc::new(keys);
    let normal = Router::new()
        .route("/generate", post(generate::generate).put(generate::generate))
        .route("/classify", post(classify::classify).put(classify::classify))
        .route("/model_info", get(control::model_info))
        .route("/get_model_info", get(control::model_info))
        .route("/server_info", get(control::server_info))
        .route("/get_server_info", get(control::server_info))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*model}", get(openai::model))
        .route("/v1/completions", post(openai::completions))
        .route("/v1/chat/completions", post(openai::chat_completions))
        .layer(from_fn_with_state(Arc::clone(&keys), auth::normal));
    let admin = Router::new()
        .route("/pause_generation", post(control::pause))
        .route("/continue_generation", post(control::resume))
        .route("/abort_request", post(control::abort))
        .route("/flush_cache", get(control::flush).post(control::flush))
        .route("/get_weights_by_name", get(weights::read_query).post(weights::read_body))
        .route("/update_weights_from_disk", post(weights::from_disk))
        .route("/init_weights_update_group", post(weights::init_group))
        .route("/update_weights_from_distributed", post(weights::from_distributed))
        .route("/destroy_weights_update_group", post(weights::destroy_group))
        .route("/update_weight_version", post(control::update_weight_version))
        .layer(from_fn_with_state(keys, auth::admin));
    open()
        .merge(normal)
        .merge(admin)
        .fallback(async || responses::detail(StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(async || responses::detail(StatusCode::METHOD_NOT_ALLOWED))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(engine)
}
