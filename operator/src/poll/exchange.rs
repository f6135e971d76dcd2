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
use rljob_protocol::status::CoordinatorStatus;

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
    if steps > max {
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
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::response::IntoResponse;
    use axum::routing::{get, put};
    use rljob_http::{Limits, Role, Routes, ServerTls};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::decide::test_support::{facts, report};
    use crate::desired::tokens::{TokenKey, Tokens};

    /// A coordinator that answers with this code and this status body.
    async fn asked(desired: StatusCode, body: &'static str) -> String {
        asked_for(desired, async move || body.into_response()).await
    }

    async fn asked_for<F>(
        desired: StatusCode,
        status: impl Fn() -> F + Clone + Send + Sync + 'static,
    ) -> String
    where
        F: Future<Output = axum::response::Response> + Send + 'static,
    {
        let routes = Router::new()
            .route("/v1/desired", put(async move || (desired, "unknown field `later`")))
            .route("/v1/status", get(status));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), "uid");
        let clients = [Role::Operator.server_name("uid")];
        let pem = tokens.certificates.of(Role::Coordinator);
        let tls = ServerTls::of_pem(pem, &clients).unwrap();
        let routes = Routes::new(Router::new(), routes, &tls);
        let stop = CancellationToken::new();
        let server =
            tokio::spawn(rljob_http::serve(listener, routes, Limits::default(), stop.clone()));
        let job = crate::validate::test_support::validated();
        let order = CoordinatorOrder {
            identity: "pod".to_owned(),
            url,
            restarts: 0,
            token: "secret".to_owned(),
            certificate: tokens.certificates.of(Role::Operator).clone(),
            server_name: Role::Coordinator.server_name("uid"),
            max_steps: 10,
            desired: crate::decide::desired_for_coordinator(&job, &facts()).unwrap(),
        };
        let result = exchange(&mut Link::default(), &order, &mut Sent::default()).await;
        server.abort();
        match result {
            Ok(status) => format!("{:?}", status.phase),
            Err(ExchangeError::Unsupported(message)) => message,
            Err(ExchangeError::Unanswered(error)) => error.replace(&order.url, ""),
        }
    }

    #[tokio::test]
    async fn requests_that_another_release_cannot_serve_are_distinguished_from_failures() {
        let status: &'static str = serde_json::to_string(&report()).unwrap().leak();
        assert_eq!(asked(StatusCode::OK, status).await, "Running");
        assert_eq!(asked(StatusCode::CONFLICT, status).await, "Running");
        assert_eq!(
            asked(StatusCode::UNPROCESSABLE_ENTITY, status).await,
            "the coordinator speaks protocol version 1 and this operator version 3: it answers PUT \
             /v1/desired with 422 Unprocessable Entity: unknown field `later`; run the coordinator \
             from an image of the operator's release"
        );
        assert_eq!(
            asked(StatusCode::OK, r#"{"phase": "Paused"}"#).await,
            "the coordinator speaks protocol version 1 and this operator version 3: its status is \
             unreadable: unknown variant `Paused`, expected one of `Starting`, `Running`, \
             `Restarting`, `Draining`, `Drained`, `Finished`, `Failed` at line 1 column 18; run \
             the coordinator from an image of the operator's release"
        );
        for passing in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNAUTHORIZED] {
            let class = if passing.is_server_error() { "server" } else { "client" };
            let expected = format!("HTTP status {class} error ({passing}) for url (/v1/desired)");
            assert_eq!(asked(passing, status).await, expected);
        }
    }

    #[tokio::test]
    async fn a_status_is_read_within_limits() {
        let endless = async || {
            let chunks =
                futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 65536]));
            Body::from_stream(chunks).into_response()
        };
        let expected = format!("the response has more than {MAX_STATUS} bytes");
        assert_eq!(asked_for(StatusCode::OK, endless).await, expected);
        let silent = async || {
            Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>())
                .into_response()
        };
        let answer = asked_for(StatusCode::OK, silent).await;
        assert!(answer.ends_with("operation timed out"), "{answer}");
        for (step, total_steps) in [(11, 10), (3, 11)] {
            let other = CoordinatorStatus { step, total_steps, ..report() };
            let other: &'static str = serde_json::to_string(&other).unwrap().leak();
            let answer = asked(StatusCode::OK, other).await;
            assert!(answer.contains("its status has 11 steps of a run of 10 steps"), "{answer}");
        }
    }

    #[tokio::test]
    async fn an_epoch_far_above_the_recorded_one_is_invalid() {
        let recorded = facts().epoch.number;
        let highest = recorded + MAX_LOST_EPOCHS;
        for (epoch, is_valid) in [(highest, true), (highest + 1, false), (u64::MAX, false)] {
            let status = CoordinatorStatus { epoch: Some(epoch), ..report() };
            let status: &'static str = serde_json::to_string(&status).unwrap().leak();
            let answer = asked(StatusCode::CONFLICT, status).await;
            let problem = format!("its status has epoch {epoch} of a run in epoch {recorded};");
            assert_eq!(answer == "Running", is_valid, "{answer}");
            assert_eq!(answer.contains(&problem), !is_valid, "{answer}");
        }
    }
}
