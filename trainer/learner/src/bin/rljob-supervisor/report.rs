//! Reports to the coordinator: sends a report and returns the order in the response. Retries are
//! the supervisor's decision.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use rljob_crds::names::TOKEN_LEARNER;
use rljob_http::ClientTls;
use rljob_protocol::peer::{PROTOCOL_HEADER, PROTOCOL_VERSION, peer_version};
use rljob_protocol::supervisor::{EPOCH_HEADER, Order, SupervisorReport};
use rljob_storage::coordinator_resolver::CoordinatorResolver;

/// Timeout of a report, response included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of connecting; short because the address of a deleted pod does not respond.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A failed report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("failed to read the token `{}`", .0.display())]
    Token(PathBuf, #[source] std::io::Error),
    /// No connection, or no response.
    #[error("failed to reach the coordinator")]
    Unreachable(#[source] reqwest::Error),
    /// A newer supervisor has the same name.
    #[error("the coordinator has another supervisor of this name: {0}")]
    Replaced(String),
    /// Any other HTTP error.
    #[error("the coordinator responded with {0}: {1}")]
    Status(StatusCode, String),
    /// The response is not an order.
    #[error("failed to parse the coordinator's order")]
    Order(#[source] reqwest::Error),
}

impl ReportError {
    /// The error and its causes in one line.
    pub fn line(&self) -> String {
        let (mut line, mut cause) = (self.to_string(), self.source());
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
        }
        line
    }
}

/// HTTP client of the coordinator's supervisor API.
#[derive(Debug)]
pub struct Reporter {
    http: reqwest::Client,
    url: String,
    token: PathBuf,
    /// Protocol version of the coordinator that responded last; 1 before.
    peer: u32,
}

impl Reporter {
    /// Creates a client for the supervisor `name`. `resolver` resolves the host of `coordinator`, a
    /// base URL; `tokens` is the folder of tokens. `tls` accepts only the run's coordinator.
    pub fn new(
        coordinator: &str,
        name: &str,
        tokens: &Path,
        resolver: CoordinatorResolver,
        tls: &ClientTls,
    ) -> reqwest::Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(REQUEST_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .dns_resolver(Arc::new(resolver));
        let url = format!("{coordinator}/v1/supervisors/{name}");
        let (http, token) = (tls.client(http).build()?, tokens.join(TOKEN_LEARNER));
        Ok(Self { http, url, token, peer: 1 })
    }

    /// Sends a report; returns the order and the epoch of the coordinator that sent it. `epoch` is
    /// the highest accepted epoch.
    ///
    /// # Errors
    /// The token cannot be read, or the response is not an order.
    pub async fn report(
        &mut self,
        report: SupervisorReport,
        epoch: u64,
    ) -> Result<(u64, Order), ReportError> {
        // Read for each report, because it may be rotated.
        let token = tokio::fs::read_to_string(&self.token)
            .await
            .map_err(|error| ReportError::Token(self.token.clone(), error))?;
        let response = self
            .http
            .post(&self.url)
            .bearer_auth(token.trim())
            .header(PROTOCOL_HEADER, PROTOCOL_VERSION)
            .json(&report.for_peer(self.peer))
            .send()
            .await
            .map_err(ReportError::Unreachable)?;
        self.peer = peer_version(response.headers().get(PROTOCOL_HEADER).map(AsRef::as_ref));
        let (status, responded) = (response.status(), epoch_of(response.headers()));
        if status == StatusCode::CONFLICT && responded >= epoch {
            return Err(ReportError::Replaced(response.text().await.unwrap_or_default()));
        }
        if !status.is_success() {
            return Err(ReportError::Status(status, response.text().await.unwrap_or_default()));
        }
        Ok((responded, response.json().await.map_err(ReportError::Order)?))
    }
}

/// Epoch of the coordinator that responded; 0 without the header.
fn epoch_of(headers: &HeaderMap) -> u64 {
    headers
        .get(EPOCH_HEADER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .unwrap_or_default()
}
