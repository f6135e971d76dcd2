//! Errors of the proxy in OpenAI's shape.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A rejected request of an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    #[error("the API key is missing, wrong, or of a session that has ended")]
    Key,
    #[error("no route {0}")]
    Route(String),
    #[error("the body is larger than {0} bytes")]
    BodyTooLarge(usize),
    #[error("failed to read the body: {0}")]
    Body(String),
    #[error("the body is not valid: {0}")]
    Json(String),
    /// A parameter that the proxy does not accept.
    #[error("{param}: {message}")]
    Parameter { param: String, message: String },
    #[error(
        "the conversation has {tokens} tokens, which leaves none for a completion: see maxTokens \
         of the workflow and the context of the model"
    )]
    NoRoom { tokens: usize },
    #[error("the session may request {0} completions: see maxTurns of the workflow")]
    Turns(u32),
    #[error("completion `{0}` does not exist in this session")]
    UnknownCompletion(String),
    #[error("the session has too many requests in progress: wait for some of them")]
    Busy,
    #[error("the session has ended")]
    Ended,
    #[error(
        "an engine failed after a part of the completion was sent, and the completion was sampled \
         again with other tokens: repeat the request"
    )]
    Changed,
    #[error("{0}")]
    Rejected(String),
}

impl ProxyError {
    /// An invalid parameter.
    pub fn parameter(param: &str, message: impl Into<String>) -> Self {
        Self::Parameter { param: param.to_owned(), message: message.into() }
    }

    /// OpenAI's clients retry 408, 409, 429 and 5xx.
    fn status(&self) -> StatusCode {
        match self {
            Self::Key => StatusCode::UNAUTHORIZED,
            Self::Route(_) | Self::UnknownCompletion(_) => StatusCode::NOT_FOUND,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Ended => StatusCode::GONE,
            Self::Changed => StatusCode::SERVICE_UNAVAILABLE,
            Self::Body(_)
            | Self::Json(_)
            | Self::Parameter { .. }
            | Self::NoRoom { .. }
            | Self::Turns(_)
            | Self::Rejected(_) => StatusCode::BAD_REQUEST,
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            Self::Key => Some("invalid_api_key"),
            Self::NoRoom { .. } => Some("context_length_exceeded"),
            Self::Turns(_) => Some("turn_limit_exceeded"),
            Self::Busy => Some("rate_limit_exceeded"),
            Self::Ended => Some("session_ended"),
            Self::Parameter { .. } => Some("unsupported_parameter"),
            _ => None,
        }
    }

    /// The error in OpenAI's shape.
    pub fn object(&self) -> Value {
        let param = match self {
            Self::Parameter { param, .. } => Some(param),
            _ => None,
        };
        let kind = match self {
            Self::Busy => "rate_limit_error",
            Self::Changed => "server_error",
            _ => "invalid_request_error",
        };
        let error = json!({
            "message": self.to_string(), "type": kind, "param": param, "code": self.code(),
        });
        json!({ "error": error })
    }
}

impl IntoResponse for ProxyError {
    fn into_response(self) -> Response {
        (self.status(), Json(self.object())).into_response()
    }
}
