//! Bodies in and out: JSON with SGLang's error shapes.

use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rljob_protocol::sglang::{ErrorBody, ErrorMessage, WeightsAnswer};
use serde::de::DeserializeOwned;

use crate::request::GenerateError;

/// Reads a body; one that is not as agreed is answered as SGLang answers a failed validation.
pub fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| {
        Box::new(server_error(StatusCode::BAD_REQUEST, "Bad Request", &error.to_string()))
    })
}

/// 400 with `{"error": {"message": …}}`.
pub fn invalid(message: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(error_body(message))).into_response()
}

/// `{"error": {"message": …}}`.
pub fn error_body(message: &str) -> ErrorBody {
    ErrorBody { error: ErrorMessage { message: message.to_owned() } }
}

/// The answer to a request that failed.
pub fn generate_error(error: &GenerateError) -> Response {
    let status = match error {
        GenerateError::Invalid(message) => return invalid(message),
        GenerateError::QueueFull | GenerateError::Draining => StatusCode::SERVICE_UNAVAILABLE,
        GenerateError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    server_error(status, status.as_str(), &error.to_string())
}

/// The scheduler's thread is gone.
pub fn scheduler_ended() -> Response {
    generate_error(&GenerateError::Internal("the scheduler has ended".to_owned()))
}

/// A weight route's answer: 400 if it failed.
pub fn weights_answer(answer: WeightsAnswer) -> Response {
    let status = if answer.success { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    (status, Json(answer)).into_response()
}

/// `{"object": "error", …}`.
pub fn server_error(status: StatusCode, kind: &str, message: &str) -> Response {
    let body = serde_json::json!({"object": "error", "message": message, "type": kind, "param": null, "code": status.as_u16()});
    (status, Json(body)).into_response()
}
