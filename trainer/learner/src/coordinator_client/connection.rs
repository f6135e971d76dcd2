//! Calls that are retried while the coordinator is unavailable, and their errors.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::header::HeaderValue;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use rljob_http::ClientTls;
use rljob_protocol::batch::BatchError;
use rljob_protocol::peer::{PROTOCOL_HEADER, PROTOCOL_VERSION, peer_version};
use rljob_protocol::supervisor::EPOCH_HEADER;
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use tokio::runtime::Runtime;

/// Maximum time that calls are retried. Timeouts of collectives are longer, so that ranks wait for
/// a rank that retries.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Initial and maximum backoff.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// Timeout of connecting; short because the address of a deleted pod does not respond.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of a request, response included: an instruction is held for up to 4 s, and a batch may
/// be large.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Body of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body<'a> {
    /// Media type.
    pub(super) kind: &'static str,
    pub(super) bytes: &'a [u8],
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

/// HTTP connections to the coordinator.
#[derive(Debug)]
pub(super) struct Connection {
    runtime: Runtime,
    http: reqwest::Client,
    base: String,
    /// File of the token.
    token: PathBuf,
    /// Highest epoch of a response.
    epoch: AtomicU64,
    /// Protocol version of the coordinator that responded last.
    coordinator_protocol: AtomicU32,
}

impl Connection {
    pub(super) fn open(
        base: &str,
        resolver: CoordinatorResolver,
        token: PathBuf,
        tls: Option<&ClientTls>,
        epoch: u64,
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
            runtime,
            http,
            base: base.trim_end_matches('/').to_owned(),
            token,
            epoch: epoch.into(),
            coordinator_protocol: PROTOCOL_VERSION.into(),
        })
    }

    /// Protocol version of the coordinator that responded last.
    pub(super) fn coordinator_protocol(&self) -> u32 {
        self.coordinator_protocol.load(Ordering::Relaxed)
    }

    /// Retries a request until a response, a permanent error, or the end of [`PATIENCE`].
    pub(super) fn call(
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
