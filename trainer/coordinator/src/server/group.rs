//! API of the learners of `trainer.groups`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use rljob_protocol::batch::RankBatch;
use rljob_protocol::group::{GroupInstruction, RankLogprobs};
use serde::Deserialize;

use super::error::ApiError;
use super::held::HeldRequest;
use super::learner::{Part as PartQuery, serve};
use crate::batches::BatchRequest;
use crate::coordinator::Coordinator;
use crate::core::Rejection;
use crate::inference::{Part, Pass};
use crate::persistence::journal::Inferred;

/// Query of a request for an instruction.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    attempt: u32,
}

/// `GET /v1/groups/{group}/instructions`
pub async fn instructions(
    State(coordinator): State<Arc<Coordinator>>,
    Path(group): Path<String>,
    Query(Attempt { attempt }): Query<Attempt>,
) -> Result<Json<GroupInstruction>, ApiError> {
    let mut held = HeldRequest::new(&coordinator);
    loop {
        held.observe();
        let instruction = coordinator.run.read(|run| run.instruct_group(&group, attempt)).await?;
        if instruction != GroupInstruction::Wait || !held.wait(&coordinator).await {
            return Ok(Json(instruction));
        }
    }
}

/// `GET /v1/groups/{group}/batches/{step}`
pub async fn batch(
    State(coordinator): State<Arc<Coordinator>>,
    Path((group, step)): Path<(String, u32)>,
    Query(part): Query<PartQuery>,
) -> Result<Bytes, ApiError> {
    check(&coordinator, &group, step, part).await?;
    serve(&coordinator, BatchRequest::Inference(step), part).await
}

/// `POST /v1/groups/{group}/logprobs/{step}`. With the part of the last rank, the result is in the
/// journal, and the trainer gets it with its batch.
pub async fn logprobs(
    State(coordinator): State<Arc<Coordinator>>,
    Path((group, step)): Path<(String, u32)>,
    Query(part): Query<PartQuery>,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    check(&coordinator, &group, step, part).await?;
    let invalid = |what: String| {
        let PartQuery { rank, .. } = part;
        Rejection::Invalid(format!("group {group}, rank {rank}, batch of step {step}: {what}"))
    };
    let found = RankLogprobs::from_bytes(&body).map_err(&invalid)?;
    let batch = serve(&coordinator, BatchRequest::Inference(step), part).await?;
    let own = Part::new(&RankBatch::from_bytes(&batch)?, found).map_err(&invalid)?;
    let pass = Pass { attempt: part.attempt, step, world: part.world };
    if let Some(inferred) = coordinator.inference.add(pass, part.rank, own) {
        record(&coordinator, &group, step, inferred).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Rejects a superseded attempt, a batch that is not fixed, and ranks that the group does not have.
async fn check(
    coordinator: &Coordinator,
    group: &str,
    step: u32,
    PartQuery { attempt, rank, world }: PartQuery,
) -> Result<(), Rejection> {
    let checked = |run: &crate::core::Run| {
        run.fence_group(group, attempt)?;
        if !run.is_fixed(step) {
            return Err(Rejection::Invalid(format!("the batch of step {step} is not fixed yet")));
        }
        if run.group_world_size(group) != Some(world) || rank >= world {
            let message = format!("group {group} has no rank {rank} of {world}");
            return Err(Rejection::Invalid(message));
        }
        Ok(())
    };
    coordinator.run.read(checked).await
}

async fn record(
    coordinator: &Coordinator,
    group: &str,
    step: u32,
    inferred: Inferred,
) -> Result<(), ApiError> {
    let (seconds, tokens) = (inferred.seconds, inferred.logprobs.len());
    coordinator.journal.call(move |journal| journal.put_inferred(step, &inferred)).await?;
    coordinator.run.change(|run, _| run.inferred(group, step)).await?;
    let now = coordinator.clock.now();
    let began = now.saturating_sub(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let timeline = &coordinator.recorder.timeline;
    timeline.add(&format!("group {group}"), format!("infer step {step}"), (began, now));
    tracing::info!(group, step, tokens, seconds, "a group inferred a batch");
    Ok(())
}
