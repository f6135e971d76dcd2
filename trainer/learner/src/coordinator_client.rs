//! HTTP client of the coordinator's learner API: blocking calls, from any thread, that survive a
//! restart of the coordinator.
//!
//! A call is retried while the coordinator is unavailable (no connection, a timeout, a 5xx) for up
//! to [`PATIENCE`]. A 409 means that the attempt was superseded, and ends the learner. The token is
//! read for each request, because it may be rotated.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod connection;

use std::path::PathBuf;
use std::sync::Arc;

use reqwest::{Method, StatusCode};
use rljob_http::ClientTls;
use rljob_protocol::batch::RankBatch;
use rljob_protocol::group::{GroupInstruction, RankLogprobs};
use rljob_protocol::learner::{
    CheckpointReport, Instruction, StepReport, ValidationReport, WeightsReady,
};
use rljob_protocol::memory::{MemoryPlan, MemoryReport};
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use serde::Serialize;

use self::connection::{Body, Connection};
pub use self::connection::{ClientError, PATIENCE};

/// A client of one attempt of the learner group. Clones share the connection pool.
#[derive(Clone, Debug)]
pub struct CoordinatorClient {
    connection: Arc<Connection>,
    attempt: u32,
}

impl CoordinatorClient {
    /// Creates a client of the coordinator at `base`, whose host `resolver` resolves and whose
    /// epoch is at least `epoch`. `token` is the file of the token. `tls` accepts only the run's
    /// coordinator; tests have none.
    ///
    /// # Errors
    /// The runtime or the HTTP client cannot be created.
    pub fn new(
        base: &str,
        resolver: CoordinatorResolver,
        token: PathBuf,
        tls: Option<&ClientTls>,
        epoch: u64,
        attempt: u32,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            connection: Arc::new(Connection::open(base, resolver, token, tls, epoch)?),
            attempt,
        })
    }

    /// Attempt that every call names.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Protocol version of the coordinator that responded last.
    pub fn coordinator_protocol(&self) -> u32 {
        self.connection.coordinator_protocol()
    }

    /// Checks that this attempt is current; called before irreversible actions such as the commit
    /// of a checkpoint.
    ///
    /// # Errors
    /// The attempt was superseded, or the call failed.
    pub fn confirm(&self) -> Result<(), ClientError> {
        self.connection
            .call(&Method::GET, &format!("/v1/attempts/{}", self.attempt), None)
            .map(drop)
    }

    /// The next instruction after `steps_done` steps. Long poll: the coordinator holds the request
    /// for up to 4 s.
    pub fn instruction(&self, steps_done: u32) -> Result<Instruction, ClientError> {
        let path = format!("/v1/instructions?attempt={}&step={steps_done}", self.attempt);
        let bytes = self.connection.call(&Method::GET, &path, None)?;
        serde_json::from_slice(&bytes)
            .map_err(|source| ClientError::Response { call: format!("GET {path}"), source })
    }

    /// This rank's part of the batch of `step`.
    pub fn batch(&self, step: u32, rank: u32, world_size: u32) -> Result<RankBatch, ClientError> {
        self.part("batches", step, rank, world_size)
    }

    /// This rank's part of the validation data, after `step` steps.
    pub fn validation_data(
        &self,
        step: u32,
        rank: u32,
        world_size: u32,
    ) -> Result<RankBatch, ClientError> {
        self.part("validations", step, rank, world_size)
    }

    fn part(
        &self,
        of: &str,
        step: u32,
        rank: u32,
        world_size: u32,
    ) -> Result<RankBatch, ClientError> {
        let path =
            format!("/v1/{of}/{step}?attempt={}&rank={rank}&world={world_size}", self.attempt);
        RankBatch::from_bytes(&self.connection.call(&Method::GET, &path, None)?)
            .map_err(|error| ClientError::Batch(step, error))
    }

    /// The next instruction for a group of `trainer.groups`. Long poll, as [`Self::instruction`].
    pub fn group_instruction(&self, group: &str) -> Result<GroupInstruction, ClientError> {
        let path = format!("/v1/groups/{group}/instructions?attempt={}", self.attempt);
        let bytes = self.connection.call(&Method::GET, &path, None)?;
        serde_json::from_slice(&bytes)
            .map_err(|source| ClientError::Response { call: format!("GET {path}"), source })
    }

    /// A rank's part of the batch of `step`, for a group that infers it.
    pub fn group_batch(
        &self,
        group: &str,
        step: u32,
        rank: u32,
        world_size: u32,
    ) -> Result<RankBatch, ClientError> {
        self.part(&format!("groups/{group}/batches"), step, rank, world_size)
    }

    /// Sends what a rank of a group inferred of the batch of `step`.
    pub fn send_logprobs(
        &self,
        group: &str,
        step: u32,
        (rank, world_size): (u32, u32),
        logprobs: &RankLogprobs,
    ) -> Result<(), ClientError> {
        let attempt = self.attempt;
        let path = format!(
            "/v1/groups/{group}/logprobs/{step}?attempt={attempt}&rank={rank}&world={world_size}"
        );
        let body = Body { kind: "application/octet-stream", bytes: &logprobs.to_bytes() };
        self.connection.call(&Method::POST, &path, Some(body)).map(drop)
    }

    /// Reports a completed step.
    pub fn report_step(&self, report: &StepReport) -> Result<(), ClientError> {
        let path = format!("/v1/steps/{}", report.metrics.step);
        loop {
            let protocol = self.coordinator_protocol();
            match self.post(&path, &report.clone().for_peer(protocol)) {
                // A coordinator of another release responded for the first time.
                Err(ClientError::Rejected { .. }) if self.coordinator_protocol() != protocol => {}
                result => return result,
            }
        }
    }

    /// Reports the loss of the validation data after `step` steps.
    pub fn report_validation(
        &self,
        step: u32,
        report: &ValidationReport,
    ) -> Result<(), ClientError> {
        self.post(&format!("/v1/validations/{step}"), report)
    }

    /// Reports a complete checkpoint.
    pub fn report_checkpoint(&self, report: &CheckpointReport) -> Result<(), ClientError> {
        self.post(&format!("/v1/checkpoints/{}", report.version.step), report)
    }

    /// Reports weights that engines can load.
    pub fn report_weights(&self, ready: &WeightsReady) -> Result<(), ClientError> {
        self.post("/v1/weights", ready)
    }

    /// Reports the memory plan. A coordinator of a release without its route does not show it.
    pub fn report_memory(&self, plan: MemoryPlan) -> Result<(), ClientError> {
        self.report_plan("/v1/memory", plan)
    }

    /// [`Self::report_memory`] of a group of `trainer.groups`.
    pub fn report_group_memory(&self, group: &str, plan: MemoryPlan) -> Result<(), ClientError> {
        self.report_plan(&format!("/v1/groups/{group}/memory"), plan)
    }

    fn report_plan(&self, path: &str, plan: MemoryPlan) -> Result<(), ClientError> {
        let report = MemoryReport { attempt: self.attempt, plan };
        match self.post(path, &report) {
            Err(ClientError::Rejected { status: StatusCode::NOT_FOUND, .. }) => Ok(()),
            result => result,
        }
    }

    fn post(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        let json = serde_json::to_vec(body)
            .map_err(|error| ClientError::Body(format!("POST {path}"), error))?;
        let body = Body { kind: "application/json", bytes: &json };
        self.connection.call(&Method::POST, path, Some(body)).map(drop)
    }
}
