//! The learner's way to the coordinator: blocking calls, from any thread, that outlast a restart of
//! the coordinator.
//!
//! A call is repeated while the coordinator is away (no connection, a time-out, a 5xx) for up to
//! [`PATIENCE`]; a 409 means that a newer incarnation of the group exists and ends this one. The
//! token is read for each request, since it may be rotated.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use rljob_protocol::batch::{BatchError, RankBatch};
use rljob_protocol::learner::{
    CheckpointReport, Instruction, StepReport, ValidationReport, WeightsReady,
};
use rljob_protocol::supervisor::EPOCH_HEADER;
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use serde::Serialize;
use tokio::runtime::Runtime;

/// How long the coordinator may be away. Collectives wait longer than this, so that ranks do not
/// give up on the one that waits here.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// First and longest wait between two tries.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// An address of a pod that is gone answers nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// One request, answer included: an instruction is held up to 20 s, and a batch may be large.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A coordinator that cannot be followed any longer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A newer incarnation exists.
    #[error("this attempt was replaced by a newer one: {0}")]
    Fenced(String),
    /// It answered with an error that repeating does not mend.
    #[error("the coordinator refused {call} with {status}: {message}")]
    Refused {
        /// Method and path.
        call: String,
        /// HTTP status.
        status: StatusCode,
        /// Its words.
        message: String,
    },
    /// It was away for too long.
    #[error("the coordinator did not serve {call} for {} s: {last}", PATIENCE.as_secs())]
    Away {
        /// Method and path.
        call: String,
        /// The newest error.
        last: String,
    },
    /// An answer that is not what was asked for.
    #[error("failed to understand the answer to {call}")]
    Answer {
        /// Method and path.
        call: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A batch that cannot be read.
    #[error("failed to read the batch of step {0}")]
    Batch(u32, #[source] BatchError),
    /// A body that cannot be written as JSON.
    #[error("failed to write the body of {0}")]
    Body(String, #[source] serde_json::Error),
    /// The token is missing.
    #[error("failed to read the token `{}`", .0.display())]
    Token(PathBuf, #[source] std::io::Error),
    /// No runtime or HTTP client.
    #[error("failed to start the HTTP client: {0}")]
    Start(String),
}

/// Why one try failed.
enum Failure {
    Again(String),
    Final(ClientError),
}

/// A client bound to one incarnation of the learner group. Clones share the connection pool.
#[derive(Clone, Debug)]
pub struct CoordinatorClient {
    runtime: Arc<Runtime>,
    http: reqwest::Client,
    base: String,
    token: PathBuf,
    attempt: u32,
    /// The highest epoch that answered.
    epoch: Arc<AtomicU64>,
}

impl CoordinatorClient {
    /// A client of the coordinator at `base`, whose name leads where `resolver` says and whose
    /// epoch is at least `epoch`, with the token in the file `token`.
    pub fn new(
        base: &str,
        resolver: CoordinatorResolver,
        token: PathBuf,
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
        let http = http
            .no_proxy()
            .build()
            .map_err(|error| ClientError::Start(crate::error_line(&error)))?;
        Ok(Self {
            runtime: Arc::new(runtime),
            http,
            base: base.trim_end_matches('/').to_owned(),
            token,
            attempt,
            epoch: Arc::new(epoch.into()),
        })
    }

    /// The incarnation that every call names.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Fails if this attempt was replaced: to be asked before what cannot be taken back, as the
    /// commit of a checkpoint.
    pub fn confirm(&self) -> Result<(), ClientError> {
        self.call(&Method::GET, &format!("/v1/attempts/{}", self.attempt), None).map(drop)
    }

    /// What to do after `steps_done` steps; held by the coordinator for up to 20 s.
    pub fn instruction(&self, steps_done: u32) -> Result<Instruction, ClientError> {
        let path = format!("/v1/instructions?attempt={}&step={steps_done}", self.attempt);
        let bytes = self.call(&Method::GET, &path, None)?;
        serde_json::from_slice(&bytes)
            .map_err(|source| ClientError::Answer { call: format!("GET {path}"), source })
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

    /// A step is done.
    pub fn report_step(&self, report: &StepReport) -> Result<(), ClientError> {
        self.post(&format!("/v1/steps/{}", report.metrics.step), report)
    }

    /// The validation data's loss after `step` steps is measured.
    pub fn report_validation(
        &self,
        step: u32,
        report: &ValidationReport,
    ) -> Result<(), ClientError> {
        self.post(&format!("/v1/validations/{step}"), report)
    }

    /// A checkpoint is complete.
    pub fn report_checkpoint(&self, report: &CheckpointReport) -> Result<(), ClientError> {
        self.post(&format!("/v1/checkpoints/{}", report.version.step), report)
    }

    /// Weights are ready for the engines.
    pub fn report_weights(&self, ready: &WeightsReady) -> Result<(), ClientError> {
        self.post("/v1/weights", ready)
    }

    fn post(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        let json = serde_json::to_vec(body)
            .map_err(|error| ClientError::Body(format!("POST {path}"), error))?;
        self.call(&Method::POST, path, Some(&json)).map(drop)
    }

    /// Repeats a request until it is answered, refused, or [`PATIENCE`] is over.
    fn call(
        &self,
        method: &Method,
        path: &str,
        json: Option<&[u8]>,
    ) -> Result<Vec<u8>, ClientError> {
        let (started, mut backoff) = (Instant::now(), BACKOFF.0);
        loop {
            crate::heartbeat::advance();
            let last = match self.runtime.block_on(self.try_once(method, path, json)) {
                Ok(bytes) => return Ok(bytes),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again(last)) => last,
            };
            if started.elapsed() > PATIENCE {
                return Err(ClientError::Away { call: format!("{method} {path}"), last });
            }
            tracing::warn!(call = %format!("{method} {path}"), error = last, "the coordinator is away; trying again");
            std::thread::sleep(backoff);
            backoff = (backoff * 2).min(BACKOFF.1);
        }
    }

    /// A coordinator that was replaced may still answer whoever was connected to it; nothing that
    /// it says counts.
    fn check_epoch(&self, response: &Response) -> Result<(), Failure> {
        let told = response
            .headers()
            .get(EPOCH_HEADER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let highest = self.epoch.fetch_max(told.unwrap_or_default(), Ordering::Relaxed);
        match told {
            Some(epoch) if epoch < highest => Err(Failure::Again(format!(
                "an answer of epoch {epoch} came after one of epoch {highest}"
            ))),
            _ => Ok(()),
        }
    }

    async fn try_once(
        &self,
        method: &Method,
        path: &str,
        json: Option<&[u8]>,
    ) -> Result<Vec<u8>, Failure> {
        let token = std::fs::read_to_string(&self.token)
            .map_err(|error| Failure::Final(ClientError::Token(self.token.clone(), error)))?;
        let mut request: RequestBuilder = self
            .http
            .request(method.clone(), format!("{}{path}", self.base))
            .bearer_auth(token.trim());
        if let Some(json) = json {
            request = request.header("content-type", "application/json").body(json.to_vec());
        }
        let again = |error: reqwest::Error| Failure::Again(crate::error_line(&error.without_url()));
        let response = request.send().await.map_err(again)?;
        self.check_epoch(&response)?;
        let response = check(response, || format!("{method} {path}")).await?;
        Ok(response.bytes().await.map_err(again)?.to_vec())
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
        // A token may be rotated on one side a moment before the other.
        StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            Failure::Again(format!("{status}: {message}"))
        }
        _ if status.is_server_error() => Failure::Again(format!("{status}: {message}")),
        _ => Failure::Final(ClientError::Refused { call: call(), status, message }),
    })
}
