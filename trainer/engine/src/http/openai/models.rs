//! `/v1/models`: the served model, named by its folder.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::engine::Engine;

fn card(engine: &Engine) -> Value {
    let name = &engine.served.name;
    json!({
        "id": name, "object": "model", "created": engine.served.since, "owned_by": "sglang",
        "root": name, "parent": null,
        "max_model_len": engine.limits.context_length
    })
}

pub async fn models(State(engine): State<Engine>) -> Json<Value> {
    Json(json!({"object": "list", "data": [card(&engine)]}))
}

pub async fn model(State(engine): State<Engine>, Path(name): Path<String>) -> Response {
    if engine.served.name.trim_start_matches('/') == name.trim_start_matches('/') {
        return Json(card(&engine)).into_response();
    }
    let message = format!("The model '{name}' does not exist");
    let error = json!({"error": {
        "message": message, "type": "invalid_request_error", "param": "model",
        "code": "model_not_found"
    }});
    (StatusCode::NOT_FOUND, Json(error)).into_response()
}
