//! Every answer names the epoch that it is given under, and none is given by a coordinator that was
//! replaced: it would be one from the past.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use rljob_protocol::supervisor::EPOCH_HEADER;

use super::error::ApiError;
use crate::coordinator::Coordinator;

/// Gives an answer only if this coordinator may still act: it may have been stopped while the
/// request was held.
pub async fn fenced(
    State(coordinator): State<Arc<Coordinator>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let fence = coordinator.journal.fence();
    let mut response = next.run(request).await;
    fence.check_now_and_then().await?;
    response.headers_mut().insert(EPOCH_HEADER, HeaderValue::from(fence.epoch()));
    Ok(response)
}
