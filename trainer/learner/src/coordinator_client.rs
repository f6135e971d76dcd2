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

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::header::HeaderValue;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use rljob_http::ClientTls;
use rljob_protocol::batch::{BatchError, RankBatch};
use rljob_protocol::group::{GroupInstruction, RankLogprobs};
use rljob_protocol::learner::{
    CheckpointReport, Instruction, StepReport, ValidationReport, WeightsReady,
};
use rljob_protocol::memory::{MemoryPlan, MemoryReport};
use rljob_protocol::peer::{PROTOCOL_HEADER, PROTOCOL_VERSION, peer_version};
use rljob_protocol::supervisor::EPOCH_HEADER;
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use serde::Serialize;
use tokio::runtime::Runtime;

/// Maximum time that calls are retried. Timeouts of collectives are longer, so that ranks wait for
/// a rank that retries.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Initial and maximum backoff.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// Timeout of connecting; short because the address of a deleted pod does not respond.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of a request, response included: an instruction is held for up to 20 s, and a batch may
/// be large.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Body of a request.
#[derive(Clone, Copy, Debug)]
struct Body<'a> {
    /// Media type.
    kind: &'static str,
    bytes: &'a [u8],
}

/// A call that failed permanently.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A newer attempt exists.
    #[error("this attempt was superseded: {0}")]
    Fenced(String),
    /// A response with an error that a retry does not resolve.
    #[error("the coordinator rejected {call} with {status}: {message}")]
    Rejected {
        /// Method and path.
        call: String,
        status: StatusCode,
        message: String,
    },
    /// The coordinator was unavailable for [`PATIENCE`].
    #[error("the coordinator was unavailable for {call} for {} s: {last}", PATIENCE.as_secs())]
    Unavailable {
        /// Method and path.
        call: String,
        /// The newest error.
        last: String,
    },
    /// The response cannot be parsed.
    #[error("failed to parse the response to {call}")]
    Response {
        /// Method and path.
        call: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("failed to read the batch of step {0}")]
    Batch(u32, #[source] BatchError),
    #[error("failed to encode the body of {0}")]
    Body(String, #[source] serde_json::Error),
    #[error("failed to read the token `{}`", .0.display())]
    Token(PathBuf, #[source] std::io::Error),
    #[error("failed to start the HTTP client: {0}")]
    Start(String),
}

/// Error of a single request.
enum Failure {
    Retry(String),
    Final(ClientError),
}

/// A client of one attempt of the learner group. Clones share the connection pool.
#[derive(Clone, Debug)]
pub struct CoordinatorClient {
    runtime: Arc<Runtime>,
    http: reqwest::Client,
    base: String,
    token: PathBuf,
    attempt: u32,
    /// Highest epoch of a response.
    epoch: Arc<AtomicU64>,
    /// Protocol version of the coordinator that responded last.
    coordinator_protocol: Arc<AtomicU32>,
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
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("http")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| ClientError::Start(error.to_string()))?;
        let http = reqwest::Client::builder()
            .timeout(REQUEST_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .dns_resolver(Arc::new(resolver));
        let http = match tls {
            Some(tls) => tls.client(http),
            None => http.no_proxy(),
        };
        let http = http.build().map_err(|error| ClientError::Start(crate::error_line(&error)))?;
        Ok(Self {
            runtime: Arc::new(runtime),
            http,
            base: base.trim_end_matches('/').to_owned(),
            token,
            attempt,
            epoch: Arc::new(epoch.into()),
            coordinator_protocol: Arc::new(PROTOCOL_VERSION.into()),
        })
    }

    /// Attempt that every call names.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Protocol version of the coordinator that responded last.
    pub fn coordinator_protocol(&self) -> u32 {
        self.coordinator_protocol.load(Ordering::Relaxed)
    }

    /// Checks that this attempt is current; called before irreversible actions such as the commit
    /// of a checkpoint.
    ///
    /// # Errors
    /// The attempt was superseded, or the call failed.
    pub fn confirm(&self) -> Result<(), ClientError> {
        self.call(&Method::GET, &format!("/v1/attempts/{}", self.attempt), None).map(drop)
    }

    /// The next instruction after `steps_done` steps. Long poll: the coordinator holds the request
    /// for up to 20 s.
    pub fn instruction(&self, steps_done: u32) -> Result<Instruction, ClientError> {
        let path = format!("/v1/instructions?attempt={}&step={steps_done}", self.attempt);
        let bytes = self.call(&Method::GET, &path, None)?;
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
        RankBatch::from_bytes(&self.call(&Method::GET, &path, None)?)
            .map_err(|error| ClientError::Batch(step, error))
    }

    /// The next instruction for a group of `trainer.groups`. Long poll, as [`Self::instruction`].
    pub fn group_instruction(&self, group: &str) -> Result<GroupInstruction, ClientError> {
        let path = format!("/v1/groups/{group}/instructions?attempt={}", self.attempt);
        let bytes = self.call(&Method::GET, &path, None)?;
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
        self.call(&Method::POST, &path, Some(body)).map(drop)
    }

    /// Reports a completed step.
    pub fn report_step(&self, report: &StepReport) -> Result<(), ClientError> {
        let path = format!("/v1/steps/{}", report.metrics.step);
        loop {
            let protocol = self.coordinator_protocol.load(Ordering::Relaxed);
            match self.post(&path, &report.clone().for_peer(protocol)) {
                // A coordinator of another release responded for the first time.
                Err(ClientError::Rejected { .. })
                    if self.coordinator_protocol.load(Ordering::Relaxed) != protocol => {}
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
        self.call(&Method::POST, path, Some(body)).map(drop)
    }

    /// Retries a request until a response, a permanent error, or the end of [`PATIENCE`].
    fn call(
        &self,
        method: &Method,
        path: &str,
        body: Option<Body<'_>>,
    ) -> Result<Vec<u8>, ClientError> {
        let (started, mut backoff) = (Instant::now(), BACKOFF.0);
        loop {
            crate::heartbeat::advance();
            let last = match self.runtime.block_on(self.request(method, path, body)) {
                Ok(bytes) => return Ok(bytes),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Retry(last)) => last,
            };
            if started.elapsed() > PATIENCE {
                return Err(ClientError::Unavailable { call: format!("{method} {path}"), last });
            }
            let call = format!("{method} {path}");
            tracing::warn!(call, error = last, "the coordinator is unavailable; retrying");
            std::thread::sleep(backoff);
            backoff = backoff.saturating_mul(2).min(BACKOFF.1);
        }
    }

    /// Rejects responses of a superseded coordinator, which may still serve open connections.
    fn check_epoch(&self, response: &Response) -> Result<(), Failure> {
        let given = response
            .headers()
            .get(EPOCH_HEADER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let highest = self.epoch.fetch_max(given.unwrap_or_default(), Ordering::Relaxed);
        match given {
            Some(epoch) if epoch < highest => Err(Failure::Retry(format!(
                "a response of epoch {epoch} came after one of epoch {highest}"
            ))),
            _ => Ok(()),
        }
    }

    async fn request(
        &self,
        method: &Method,
        path: &str,
        body: Option<Body<'_>>,
    ) -> Result<Vec<u8>, Failure> {
        let token = std::fs::read_to_string(&self.token)
            .map_err(|error| Failure::Final(ClientError::Token(self.token.clone(), error)))?;
        let mut request: RequestBuilder = self
            .http
            .request(method.clone(), format!("{}{path}", self.base))
            .bearer_auth(token.trim())
            .header(PROTOCOL_HEADER, PROTOCOL_VERSION);
        if let Some(Body { kind, bytes }) = body {
            request = request.header("content-type", kind).body(bytes.to_vec());
        }
        let retry = |error: reqwest::Error| Failure::Retry(crate::error_line(&error.without_url()));
        let response = request.send().await.map_err(retry)?;
        let announced = response.headers().get(PROTOCOL_HEADER);
        let announced = peer_version(announced.map(HeaderValue::as_bytes));
        self.coordinator_protocol.store(announced, Ordering::Relaxed);
        self.check_epoch(&response)?;
        let response = check(response, || format!("{method} {path}")).await?;
        Ok(response.bytes().await.map_err(retry)?.to_vec())
    }
}

async fn check(response: Response, call: impl Fn() -> String) -> Result<Response, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let message = response.text().await.unwrap_or_default();
    Err(match status {
        StatusCode::CONFLICT => Failure::Final(ClientError::Fenced(message)),
        // The two sides may read a rotated token at different times.
        StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            Failure::Retry(format!("{status}: {message}"))
        }
        _ if status.is_server_error() => Failure::Retry(format!("{status}: {message}")),
        _ => Failure::Final(ClientError::Rejected { call: call(), status, message }),
    })
}
