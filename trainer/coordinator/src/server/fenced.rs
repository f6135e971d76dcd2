//! Epoch header of responses; rejects requests to a superseded coordinator.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use rljob_protocol::supervisor::EPOCH_HEADER;

use super::error::ApiError;
use crate::coordinator::Coordinator;

/// Adds the epoch to a response, or rejects the request if this coordinator was superseded while it
/// was held.
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
