//! Request and response bodies: JSON with SGLang's error formats.

use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rljob_protocol::sglang::{ErrorBody, ErrorMessage, WeightsAnswer};
use serde::de::DeserializeOwned;

use crate::request::GenerateError;

/// Parses a body; the error is SGLang's response to an invalid body.
pub fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| {
        Box::new(server_error(StatusCode::BAD_REQUEST, "Bad Request", &error.to_string()))
    })
}

/// Parses a body without the fields that `strip` removes.
pub fn parse_stripped<T: DeserializeOwned>(
    body: &Bytes,
    strip: fn(&mut serde_json::Value),
) -> Result<T, Box<Response>> {
    let mut value: serde_json::Value = parse(body)?;
    strip(&mut value);
    serde_json::from_value(value).map_err(|error| {
        Box::new(server_error(StatusCode::BAD_REQUEST, "Bad Request", &error.to_string()))
    })
}

/// FastAPI's response to an unknown route or method.
pub fn detail(status: StatusCode) -> Response {
    let reason = status.canonical_reason().unwrap_or_default();
    (status, Json(serde_json::json!({ "detail": reason }))).into_response()
}

/// Response 400 with `{"error": {"message": …}}`.
pub fn invalid(message: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(error_body(message))).into_response()
}

/// `{"error": {"message": …}}`.
pub fn error_body(message: &str) -> ErrorBody {
    ErrorBody { error: ErrorMessage { message: message.to_owned() } }
}

/// Response to a failed request.
pub fn generate_error(error: &GenerateError) -> Response {
    let status = match error {
        GenerateError::Invalid(message) => return invalid(message),
        GenerateError::QueueFull | GenerateError::Draining => StatusCode::SERVICE_UNAVAILABLE,
        GenerateError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    server_error(status, status.as_str(), &error.to_string())
}

pub fn scheduler_exited() -> Response {
    generate_error(&GenerateError::Internal("the scheduler has exited".to_owned()))
}

/// Response of a weight route; 400 on failure.
pub fn weights_result(result: WeightsAnswer) -> Response {
    let status = if result.success { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    (status, Json(result)).into_response()
}

/// Response `{"object": "error", …}`.
pub fn server_error(status: StatusCode, kind: &str, message: &str) -> Response {
    let body = serde_json::json!({
        "object": "error", "message": message, "type": kind, "param": null, "code": status.as_u16()
    });
    (status, Json(body)).into_response()
}
