//! One exchange with a coordinator: sends the desired state if it lacks it, then gets its status.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use rljob_http::{ClientTls, ReadError};
use rljob_protocol::desired::Desired;
use rljob_protocol::error_line;
use rljob_protocol::peer::{PROTOCOL_HEADER, PROTOCOL_VERSION, peer_version};
use rljob_protocol::status::{COORDINATOR_INPUT, CoordinatorStatus};

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest status in bytes.
const MAX_STATUS: usize = 4 << 20;
/// Largest error response in bytes.
const MAX_ERROR: usize = 16 << 10;
/// Most epochs by which a coordinator is ahead of a recorded epoch that was restored or lost.
const MAX_LOST_EPOCHS: u64 = 1 << 16;
/// Message about a coordinator without TLS.
pub const PLAIN_COORDINATOR: &str = "the coordinator does not prove its identity: it runs an older \
    release; suspend and resume the job to run all of its pods with this release";

/// Address and desired state of a coordinator.
#[derive(Clone, PartialEq)]
pub struct CoordinatorOrder {
    /// UID of the coordinator pod.
    pub identity: String,
    /// Base URL.
    pub url: String,
    /// Restarts of the coordinator's container, as its kubelet reports them.
    pub restarts: u32,
    /// The operator's token for this job.
    pub token: String,
    /// The operator's certificate and key for this job, as PEM.
    pub certificate: Arc<str>,
    /// Name in the coordinator's certificate.
    pub server_name: String,
    /// Highest number of steps that its status can have.
    pub max_steps: u32,
    pub desired: Desired,
}

impl fmt::Debug for CoordinatorOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, url, restarts, server_name, max_steps, desired, .. } = self;
        f.debug_struct("CoordinatorOrder")
            .field("identity", identity)
            .field("url", url)
            .field("restarts", restarts)
            .field("server_name", server_name)
            .field("max_steps", max_steps)
            .field("desired", desired)
            .finish_non_exhaustive()
    }
}

/// A failed exchange.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("{0}")]
    Unanswered(String),
    #[error("{0}")]
    Unsupported(String),
}

impl From<ReadError> for ExchangeError {
    fn from(error: ReadError) -> Self {
        Self::Unanswered(error_line(&error))
    }
}

impl From<reqwest::Error> for ExchangeError {
    fn from(error: reqwest::Error) -> Self {
        if rljob_http::is_plain_server(&error) {
            return Self::Unsupported(PLAIN_COORDINATOR.to_owned());
        }
        Self::Unanswered(error_line(&error))
    }
}

/// The HTTP client of a job: with its certificate, it reaches only the job's coordinator.
#[derive(Default)]
pub(super) struct Link(Option<(Arc<str>, reqwest::Client)>);

impl Link {
    fn client(&mut self, order: &CoordinatorOrder) -> Result<reqwest::Client, ExchangeError> {
        if let Some((certificate, client)) = &self.0
            && *certificate == order.certificate
        {
            return Ok(client.clone());
        }
        let tls = ClientTls::of_pem(&order.certificate, &order.server_name)
            .map_err(|error| ExchangeError::Unanswered(error_line(&error)))?;
        // No idle connections: each has 20 KiB of buffers, a fifth of the memory per running job.
        let builder = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(0)
            .default_headers(protocol_headers());
        let client = tls.client(builder).build()?;
        self.0 = Some((Arc::clone(&order.certificate), client.clone()));
        Ok(client)
    }
}

/// Headers of every request to a coordinator.
pub fn protocol_headers() -> HeaderMap {
    HeaderMap::from_iter([(
        HeaderName::from_static(PROTOCOL_HEADER),
        HeaderValue::from(PROTOCOL_VERSION),
    )])
}

/// The last order that a coordinator accepted.
#[derive(Default)]
pub(super) struct Sent {
    order: Option<CoordinatorOrder>,
    /// Protocol version that the coordinator announced; 0 before its first response.
    peer: u32,
}

/// Sends the desired state if the coordinator lacks it, then gets its status.
pub(super) async fn exchange(
    link: &mut Link,
    order: &CoordinatorOrder,
    sent: &mut Sent,
) -> Result<CoordinatorStatus, ExchangeError> {
    let http = link.client(order)?;
    if sent.order.as_ref() != Some(order) {
        let request = http
            .put(format!("{}/v1/desired", order.url))
            .bearer_auth(&order.token)
            .json(&order.desired.clone().for_peer(sent.peer));
        let response = request.send().await?;
        let peer = announced(&response);
        // A coordinator under a higher epoch rejects the order. Its status has that epoch, so the
        // next assigned epoch is higher.
        if response.status() != StatusCode::CONFLICT {
            served("PUT /v1/desired", response).await?;
            // Sent again if the coordinator understands more than was assumed.
            let is_whole = peer == sent.peer;
            *sent = Sent { order: is_whole.then(|| order.clone()), peer };
        }
    }
    let request = http.get(format!("{}/v1/status", order.url)).bearer_auth(&order.token);
    let response = served("GET /v1/status", request.send().await?).await?;
    let version = announced(&response);
    let status: CoordinatorStatus = serde_json::from_slice(
        &rljob_http::read(response, MAX_STATUS).await?,
    )
    .map_err(|error| incompatible(version, &format!("its status is unreadable: {error}")))?;
    status
        .check()
        .and_then(|()| check_run(&status, order))
        .map_err(|problem| incompatible(version, &problem))?;
    // A restarted container of the same pod has lost the desired state.
    if status.epoch != Some(order.desired.epoch)
        || status.generation != Some(order.desired.generation)
    {
        sent.order = None;
    }
    Ok(status)
}

fn check_run(status: &CoordinatorStatus, order: &CoordinatorOrder) -> Result<(), String> {
    let (steps, max) = (status.step.max(status.total_steps), order.max_steps);
    // A run that has done more steps than the spec wants fails with an error that says so.
    let rejects_spec =
        status.last_failure.as_ref().is_some_and(|it| it.reason == COORDINATOR_INPUT);
    if steps > max && !rejects_spec {
        return Err(format!("its status has {steps} steps of a run of {max} steps"));
    }
    let (epoch, recorded) = (status.epoch.unwrap_or_default(), order.desired.epoch);
    if epoch > recorded.saturating_add(MAX_LOST_EPOCHS) {
        return Err(format!("its status has epoch {epoch} of a run in epoch {recorded}"));
    }
    Ok(())
}

fn announced(response: &Response) -> u32 {
    peer_version(response.headers().get(PROTOCOL_HEADER).map(HeaderValue::as_bytes))
}

fn incompatible(version: u32, what: &str) -> ExchangeError {
    ExchangeError::Unsupported(format!(
        "the coordinator speaks protocol version {version} and this operator version \
         {PROTOCOL_VERSION}: {what}; run the coordinator from an image of the operator's release"
    ))
}

/// Distinguishes requests that a coordinator of another release cannot serve from failures that
/// pass.
async fn served(request: &str, response: Response) -> Result<Response, ExchangeError> {
    let status = response.status();
    let is_unsupported = matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::UPGRADE_REQUIRED
    );
    if !is_unsupported {
        return Ok(response.error_for_status()?);
    }
    let version = announced(&response);
    let body = String::from_utf8_lossy(&rljob_http::read(response, MAX_ERROR).await?).into_owned();
    let message = serde_json::from_str::<serde_json::Value>(&body)
        .ok()
        .and_then(|body| Some(body.get("error")?.as_str()?.to_owned()))
        .unwrap_or(body);
    Err(incompatible(version, &format!("it answers {request} with {status}: {message}")))
}

#[cfg(test)]
mod tests;
