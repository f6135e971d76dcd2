//! Routes of the memory plans of learners.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use rljob_protocol::memory::{MemoryPlan, MemoryReport};

use super::error::ApiError;
use crate::coordinator::Coordinator;
use crate::core::Rejection;

/// `POST /v1/memory`
pub async fn memory(
    State(coordinator): State<Arc<Coordinator>>,
    Json(MemoryReport { attempt, plan }): Json<MemoryReport>,
) -> Result<StatusCode, ApiError> {
    coordinator.run.read(|run| run.fence(attempt)).await?;
    record(&coordinator, None, plan).await
}

/// `POST /v1/groups/{group}/memory`
pub async fn of_group(
    State(coordinator): State<Arc<Coordinator>>,
    Path(group): Path<String>,
    Json(MemoryReport { attempt, plan }): Json<MemoryReport>,
) -> Result<StatusCode, ApiError> {
    coordinator.run.read(|run| run.fence_group(&group, attempt)).await?;
    record(&coordinator, Some(&group), plan).await
}

async fn record(
    coordinator: &Coordinator,
    group: Option<&str>,
    plan: MemoryPlan,
) -> Result<StatusCode, ApiError> {
    plan.check().map_err(Rejection::Invalid)?;
    coordinator.learner_memory.record(group, plan).await?;
    Ok(StatusCode::NO_CONTENT)
}
