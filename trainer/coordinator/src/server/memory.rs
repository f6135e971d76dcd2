//! Route of the memory plan of learners.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use rljob_protocol::memory::MemoryReport;

use super::error::ApiError;
use crate::coordinator::Coordinator;
use crate::core::Rejection;

/// `POST /v1/memory`
pub async fn memory(
    State(coordinator): State<Arc<Coordinator>>,
    Json(report): Json<MemoryReport>,
) -> Result<StatusCode, ApiError> {
    let MemoryReport { attempt, plan } = report;
    coordinator.run.read(|run| run.fence(attempt)).await?;
    plan.check().map_err(Rejection::Invalid)?;
    coordinator.learner_memory.record(plan).await?;
    Ok(StatusCode::NO_CONTENT)
}
