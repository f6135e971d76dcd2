//! Routes for health, model information, pause, abort and cache flush.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rljob_protocol::sglang::{AbortRequest, ContinueGeneration, ModelInfo, SGLANG_RELEASE};
use serde::Deserialize;
use serde_json::{Value, json};

use super::responses::{invalid, parse, scheduler_exited};
use crate::engine::Engine;
use crate::loading::Architecture;
use crate::scheduler::{Command, PauseMode};

const FLUSHED: &str = "Cache flushed.\nPlease check backend logs for more details. (When there \
    are running or waiting requests, the operation will not be performed.)\n";

/// Time limit of health checks.
pub const HEALTH_LIMIT: Duration = Duration::from_secs(20);

/// Interval of idle checks during a flush.
const FLUSH_POLL: Duration = Duration::from_millis(20);

/// Maximum wait of a flush in seconds.
const FLUSH_LIMIT: f64 = 600.0;

/// Returns 200 once the scheduler responds; a paused engine returns 503 after 20 s, unless it
/// continues. Kubernetes probes of engines that are paused use `/model_info`.
pub async fn health(State(engine): State<Engine>) -> StatusCode {
    let probed = async { engine.is_serving() && engine.call(Command::Probe).await.is_some() };
    match tokio::time::timeout(HEALTH_LIMIT, probed).await {
        Ok(true) => StatusCode::OK,
        Ok(false) | Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Returns the model and weight version without waiting for the scheduler.
pub async fn model_info(State(engine): State<Engine>) -> Json<Value> {
    let ModelInfo { model_path, is_generation, weight_version } = engine.info();
    let Architecture { model_type, architectures } = &engine.served.architecture;
    Json(json!({
        "model_path": model_path, "tokenizer_path": engine.served.name,
        "is_generation": is_generation, "preferred_sampling_params": null,
        "weight_version": weight_version, "has_image_understanding": false,
        "has_audio_understanding": false, "model_type": model_type,
        "architectures": architectures
    }))
}

/// Returns the limits of this engine and the release of SGLang whose API it has. SGLang adds all
/// its arguments.
pub async fn server_info(State(engine): State<Engine>) -> Json<Value> {
    let ModelInfo { model_path, weight_version, .. } = engine.info();
    Json(json!({
        "model_path": model_path, "tokenizer_path": engine.served.name,
        "served_model_name": engine.served.name, "weight_version": weight_version,
        "context_length": engine.limits.context_length,
        "max_req_input_len": engine.limits.room(1),
        "incremental_streaming_output": engine.incremental_streams,
        "max_running_requests": engine.max_running,
        "internal_states": [{"effective_max_running_requests_per_dp": engine.max_running}],
        "status": "ready", "version": SGLANG_RELEASE, "rljob_version": env!("CARGO_PKG_VERSION")
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateWeightVersion {
    new_version: String,
    #[serde(default = "abort_by_default")]
    abort_all_requests: bool,
}

fn abort_by_default() -> bool {
    true
}

/// Renames the version of the weights, which do not change.
pub async fn update_weight_version(State(engine): State<Engine>, body: Bytes) -> Response {
    let request: UpdateWeightVersion = match parse(&body) {
        Ok(request) => request,
        Err(response) => return *response,
    };
    let version = request.new_version;
    if request.abort_all_requests && engine.call(|done| Command::Abort(None, done)).await.is_none()
    {
        return scheduler_exited();
    }
    let renamed = version.clone();
    match engine.call(|done| Command::RenameVersion(renamed, done)).await {
        Some(()) => Json(json!({
            "success": true, "message": format!("Weight version updated to {version}"),
            "new_version": version
        }))
        .into_response(),
        None => scheduler_exited(),
    }
}

pub async fn metrics(State(engine): State<Engine>) -> Response {
    match engine.metrics.text() {
        Ok(text) => {
            ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// `PauseGeneration` with a typed mode.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    #[serde(default)]
    mode: PauseMode,
}

/// Stops generation and holds new requests.
pub async fn pause(State(engine): State<Engine>, body: Bytes) -> Response {
    let request: Pause = match parse(&body) {
        Ok(request) => request,
        Err(response) => return *response,
    };
    done(
        engine.call(|done| Command::Pause(request.mode, done)).await,
        "Generation paused successfully.",
    )
}

pub async fn resume(State(engine): State<Engine>, body: Bytes) -> Response {
    match parse::<ContinueGeneration>(&body) {
        Ok(_) => done(engine.call(Command::Continue).await, "Generation continued successfully."),
        Err(response) => *response,
    }
}

fn done(response: Option<()>, message: &str) -> Response {
    match response {
        Some(()) => Json(json!({"message": message, "status": "ok"})).into_response(),
        None => scheduler_exited(),
    }
}

/// Returns 200 with an empty body, also for an unknown id.
pub async fn abort(State(engine): State<Engine>, body: Bytes) -> Response {
    let request: AbortRequest = match parse(&body) {
        Ok(request) => request,
        Err(response) => return *response,
    };
    let rid = (!request.abort_all).then_some(request.rid);
    match engine.call(|done| Command::Abort(rid, done)).await {
        Some(()) => StatusCode::OK.into_response(),
        None => scheduler_exited(),
    }
}

/// Query of a flush.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlushQuery {
    /// Seconds to wait for an idle engine.
    #[serde(default)]
    timeout: f64,
}

/// Clears the caches if the engine is or becomes idle in time.
pub async fn flush(State(engine): State<Engine>, Query(query): Query<FlushQuery>) -> Response {
    if !(0.0..=FLUSH_LIMIT).contains(&query.timeout) {
        return invalid(&format!(
            "timeout must be between 0 and {FLUSH_LIMIT} seconds, got {}.",
            query.timeout
        ));
    }
    let timeout = Duration::from_secs_f64(query.timeout);
    let start = tokio::time::Instant::now();
    loop {
        match engine.call(Command::Flush).await {
            Some(true) => return FLUSHED.into_response(),
            Some(false) if start.elapsed() < timeout => {
                tokio::time::sleep(FLUSH_POLL).await;
            }
            Some(false) if query.timeout > 0.0 => {
                return (StatusCode::BAD_REQUEST, "Timed out waiting for idle state.")
                    .into_response();
            }
            Some(false) => {
                return (StatusCode::BAD_REQUEST, "Flush cache failed.\n").into_response();
            }
            None => return scheduler_exited(),
        }
    }
}
