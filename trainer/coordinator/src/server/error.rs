//! API errors: an HTTP status and a JSON message.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use rljob_crds::names::REASON_PROTOCOL_UNSUPPORTED;
use rljob_protocol::batch::BatchError;
use rljob_protocol::peer::ProtocolUnsupported;
use rljob_storage::StorageError;

use crate::batches::ServeError;
use crate::core::Rejection;
use crate::persistence::fence::FenceError;
use crate::persistence::journal::shared::SharedJournalError;

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The token is missing or wrong.
    #[error("the bearer token is missing or wrong")]
    Unauthorized,
    /// A route for the job's roles on a connection without TLS.
    #[error("this route needs TLS with a certificate of the job, as this release has it")]
    Unauthenticated,
    /// The run says no.
    #[error(transparent)]
    Run(#[from] Rejection),
    /// The operator has not assigned an epoch.
    #[error("the run is not open yet: the operator has not assigned an epoch")]
    Closed,
    /// Another coordinator superseded this one.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// The journal failed: asking again may help.
    #[error(transparent)]
    Journal(#[from] SharedJournalError),
    /// The run's run store cannot be looked at: asking again may help.
    #[error(transparent)]
    RunStore(#[from] StorageError),
    /// The batch cannot be built.
    #[error(transparent)]
    Batch(#[from] ServeError),
    /// The client is too old for this run.
    #[error(transparent)]
    Protocol(#[from] ProtocolUnsupported),
    /// A batch cannot be reduced for an older learner.
    #[error(transparent)]
    BatchFormat(#[from] BatchError),
    /// Metrics cannot be written.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Protocol(_) | Self::Unauthenticated => StatusCode::UPGRADE_REQUIRED,
            Self::Run(Rejection::Fenced { .. } | Rejection::Replaced(_)) => StatusCode::CONFLICT,
            Self::Run(Rejection::Invalid(_)) | Self::Batch(ServeError::Rank { .. }) => {
                StatusCode::BAD_REQUEST
            }
            Self::Closed | Self::Fenced(_) | Self::Batch(ServeError::NotOpen) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Journal(_)
            | Self::RunStore(_)
            | Self::Batch(_)
            | Self::BatchFormat(_)
            | Self::Metrics(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let message = crate::error_line(&self);
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(%status, message, "a request failed");
        }
        let body = match &self {
            Self::Protocol(detail) => serde_json::json!({
                "error": message, "reason": REASON_PROTOCOL_UNSUPPORTED, "detail": detail,
            }),
            _ => serde_json::json!({ "error": message }),
        };
        (status, Json(body)).into_response()
    }
}
