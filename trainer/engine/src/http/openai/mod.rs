//! OpenAI API as served by SGLang: `/v1/models`, `/v1/completions`, `/v1/chat/completions`. Runs
//! use `/generate` instead.

mod chat;
mod completions;
mod logprobs;
mod models;
mod request;
mod usage;

use axum::response::Response;

pub use chat::chat_completions;
pub use completions::completions;
pub use models::{model, models};

use super::responses::server_error;
use crate::request::GenerateError;
use axum::http::StatusCode;

/// Error response in the format of the OpenAI API.
fn error_response(error: &GenerateError) -> Response {
    match error {
        GenerateError::Invalid(message) => {
            server_error(StatusCode::BAD_REQUEST, "BadRequestError", message)
        }
        other => super::responses::generate_error(other),
    }
}
