//! Learner API: orders for supervisors; instructions, batches and reports of learners.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use rljob_crds::algorithm::Capabilities;
use rljob_crds::names::INCIDENT_GPU_FAULT;
use rljob_protocol::batch::RankBatch;
use rljob_protocol::learner::{
    CheckpointReport, Instruction, StepReport, ValidationReport, WeightsReady,
};
use rljob_protocol::peer::PROTOCOL_VERSION;
use rljob_protocol::status::EvaluationMetrics;
use rljob_protocol::supervisor::{Order, SupervisorReport};
use rljob_protocol::version::Version;
use serde::Deserialize;

use super::error::ApiError;
use super::held::HeldRequest;
use super::protocol::announced;
use super::retention::{prune_checkpoints, prune_exports, prune_folders};
use crate::batches::{self, BatchRequest, ServeError};
use crate::coordinator::Coordinator;
use crate::core::Rejection;
use crate::core::reports::Folder;
use crate::persistence::checkpoints;
use crate::persistence::journal::Checkpoint;
use crate::persistence::journal::shared::SharedJournalError;
use crate::scheduler;
use crate::sync::distributed;

/// `POST /v1/supervisors/{name}`
pub async fn supervisor(
    State(coordinator): State<Arc<Coordinator>>,
    Path(name): Path<String>,
    Json(report): Json<SupervisorReport>,
) -> Result<Json<Order>, ApiError> {
    let faults = coordinator.run.read(|run| run.new_gpu_faults(&name, &report)).await;
    let handled =
        coordinator.run.change(|run, now| run.handle_report(&name, report, now)).await??;
    for fault in faults {
        tracing::error!(supervisor = name, %fault, "a GPU failed");
        let detail = serde_json::json!({"supervisor": name, "error": fault.to_string()});
        coordinator.recorder.event(INCIDENT_GPU_FAULT, detail).await;
    }
    Ok(Json(handled))
}

/// Query of a request for an instruction: attempt and completed steps.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    attempt: u32,
    step: u32,
}

/// `GET /v1/instructions`
pub async fn instructions(
    State(coordinator): State<Arc<Coordinator>>,
    Query(position): Query<Position>,
) -> Result<Json<Instruction>, ApiError> {
    coordinator.recorder.steps_begin();
    let Position { attempt, step } = position;
    let mut held = HeldRequest::new(&coordinator);
    loop {
        held.observe();
        let engines = coordinator.fleet.views();
        let change = coordinator.run.change(|run, now| run.instruct(attempt, step, &engines, now));
        let instruction = change.await??;
        if instruction != Instruction::Wait || !held.wait(&coordinator).await {
            tracing::debug!(step, ?instruction, "instructed");
            return Ok(Json(instruction));
        }
    }
}

/// `GET /v1/attempts/{attempt}`: whether this attempt is current. Learners check before
/// irreversible writes.
pub async fn attempt(
    State(coordinator): State<Arc<Coordinator>>,
    Path(attempt): Path<u32>,
) -> Result<StatusCode, ApiError> {
    coordinator.journal.fence().ask().await?;
    coordinator.run.read(|run| run.fence(attempt)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Query of a request for a batch.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub attempt: u32,
    pub rank: u32,
    pub world: u32,
}

/// `GET /v1/batches/{step}`
pub async fn batch(
    State(coordinator): State<Arc<Coordinator>>,
    Path(step): Path<u32>,
    Query(part): Query<Part>,
    headers: HeaderMap,
) -> Result<Bytes, ApiError> {
    let is_ready =
        coordinator.run.read(|run| run.fence(part.attempt).map(|()| run.is_ready(step))).await?;
    if !is_ready {
        let message = format!("the batch of step {step} is not fixed yet, or not inferred");
        return Err(Rejection::Invalid(message).into());
    }
    let request = BatchRequest::Training(step);
    let bytes = serve(&coordinator, request, part).await?;
    for_peer(bytes, announced(&headers))
}

/// A rank's part of the data. A defect fails the run: a learner that asks again would meet it
/// again.
pub async fn serve(
    coordinator: &Coordinator,
    request: BatchRequest,
    part: Part,
) -> Result<Bytes, ApiError> {
    let (config, journal) = (&coordinator.config, &coordinator.journal);
    let served = coordinator.batches.get(config, journal, request, part.rank, part.world).await;
    if let Some(defect) = served.as_ref().err().and_then(ServeError::defect) {
        scheduler::fail(coordinator, defect).await;
    }
    Ok(served?)
}

/// A batch that a learner of this protocol version can read.
fn for_peer(bytes: Bytes, protocol: u32) -> Result<Bytes, ApiError> {
    if protocol >= PROTOCOL_VERSION {
        return Ok(bytes);
    }
    let batch = RankBatch::from_bytes(&bytes)?;
    let header = batch.header.clone().for_peer(protocol);
    Ok(RankBatch { header, ..batch }.to_bytes()?.into())
}

/// `GET /v1/validations/{step}`
pub async fn validation_data(
    State(coordinator): State<Arc<Coordinator>>,
    Path(step): Path<u32>,
    Query(part): Query<Part>,
    headers: HeaderMap,
) -> Result<Bytes, ApiError> {
    coordinator.run.read(|run| run.fence(part.attempt)).await?;
    let request = BatchRequest::Validation(step);
    let bytes = serve(&coordinator, request, part).await?;
    for_peer(bytes, announced(&headers))
}

/// `POST /v1/validations/{step}`
pub async fn validation(
    State(coordinator): State<Arc<Coordinator>>,
    Path(step): Path<u32>,
    Json(report): Json<ValidationReport>,
) -> Result<StatusCode, ApiError> {
    let measured = report.clone();
    if coordinator.run.change(|run, _| run.validation_done(step, measured)).await?? {
        let algorithm = coordinator.config.spec.algorithm.capabilities();
        let group_size = algorithm.map_or(1, Capabilities::group_size);
        let prompts = report.sequences.checked_div(group_size).unwrap_or_default();
        let metrics =
            report.added_to(EvaluationMetrics { step, prompts, ..EvaluationMetrics::default() });
        coordinator.recorder.record_evaluation(metrics, Vec::<()>::new(), Vec::new()).await?;
        coordinator.run.change(|run, _| run.evaluated(step)).await?;
    }
    tracing::info!(step, loss = report.loss, seconds = report.seconds, "validated");
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/steps/{step}`
pub async fn step(
    State(coordinator): State<Arc<Coordinator>>,
    Path(step): Path<u32>,
    Json(report): Json<StepReport>,
) -> Result<StatusCode, ApiError> {
    if report.metrics.step != step {
        return Err(Rejection::Invalid(format!(
            "the report of step {} was sent as step {step}",
            report.metrics.step
        ))
        .into());
    }
    coordinator.run.read(|run| run.fence(report.attempt)).await?;
    let timeline = &coordinator.recorder.timeline;
    timeline.add_learners(&report.spans, coordinator.clock.now());
    for span in coordinator.fleets().flat_map(|fleet| fleet.take_spans()) {
        timeline.add(&span.engine, span.name.to_owned(), span.times);
    }
    let train = coordinator.batches.input().and_then(|input| input.train.as_ref());
    let positions = batches::positions(&coordinator.config, step);
    coordinator.recorder.record_step(report.metrics, train, positions).await?;
    coordinator.run.change(|run, _| run.step_done(report.attempt, step)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/checkpoints/{step}`
pub async fn checkpoint(
    State(coordinator): State<Arc<Coordinator>>,
    Path(step): Path<u32>,
    Json(report): Json<CheckpointReport>,
) -> Result<StatusCode, ApiError> {
    let CheckpointReport { attempt, version, path } = report;
    let run_store = coordinator.run_store.clone();
    let complete =
        tokio::task::spawn_blocking(move || checkpoints::is_complete(&run_store, version))
            .await
            .map_err(SharedJournalError::from)?;
    if version.step != step || !complete? {
        return Err(Rejection::Invalid(format!(
            "no complete checkpoint of step {step} is at {}",
            path.display()
        ))
        .into());
    }
    record_position(&coordinator, version).await?;
    coordinator.run.change(|run, _| run.checkpoint_done(attempt, version, &path)).await??;
    coordinator
        .journal
        .call(move |journal| journal.put_checkpoint(&Checkpoint { version, path }))
        .await?;
    tracing::info!(%version, "a checkpoint is complete");
    prune_checkpoints(&coordinator, attempt).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Records in a checkpoint's folder where the data continues, for runs that restore it.
async fn record_position(coordinator: &Coordinator, version: Version) -> Result<(), ApiError> {
    if !coordinator.config.spec.algorithm.has_rollouts() {
        return Ok(());
    }
    let found =
        coordinator.journal.call(move |journal| journal.data_position(version.step)).await?;
    let (Some(position), run_store) = (found, coordinator.run_store.clone()) else {
        return Ok(());
    };
    let written = tokio::task::spawn_blocking(move || {
        checkpoints::put_position(&run_store, version, &position)
    });
    Ok(written.await.map_err(SharedJournalError::from)??)
}

/// `POST /v1/weights`
pub async fn weights(
    State(coordinator): State<Arc<Coordinator>>,
    Json(ready): Json<WeightsReady>,
) -> Result<StatusCode, ApiError> {
    match ready {
        WeightsReady::Disk { attempt, version, path } => {
            let folder = coordinator
                .run
                .change(|run, _| run.folder_ready(attempt, version, &path))
                .await??;
            tracing::info!(%version, path = %path.display(), kind = ?folder, "weights are on disk");
            match folder {
                Folder::Published => prune_folders(&coordinator).await,
                Folder::Exported => prune_exports(&coordinator).await,
                Folder::Evaluated => coordinator.prune_evaluation_weights().await,
                Folder::Superseded => {}
            }
        }
        WeightsReady::Distributed {
            attempt,
            version,
            rank,
            store_address,
            store_port: port,
            tensors,
            buckets,
            probes,
        } => {
            let sender = distributed::Sender {
                attempt,
                version,
                address: store_address,
                port,
                tensors,
                buckets,
                probes,
            };
            if !sender.is_consistent() {
                return Err(Rejection::Invalid("buckets do not have the tensors".to_owned()).into());
            }
            let transfers =
                coordinator.run.change(|run, _| run.sender_ready(attempt, version, rank)).await??;
            distributed::start(
                &Arc::new(coordinator.weight_sync()),
                &coordinator.stop,
                &Arc::new(sender),
                transfers,
            );
        }
    }
    Ok(StatusCode::NO_CONTENT)
}
