//! OpenAI's routes, as SGLang serves them: `/v1/models`, `/v1/completions`, `/v1/chat/completions`.
//! For people and their clients; a run uses `/generate`.

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

use super::answers::server_error;
use crate::request::GenerateError;
use axum::http::StatusCode;

/// An error in OpenAI's form.
fn refused(error: &GenerateError) -> Response {
    match error {
        GenerateError::Invalid(message) => {
            server_error(StatusCode::BAD_REQUEST, "BadRequestError", message)
        }
        other => super::answers::generate_error(other),
    }
}
