//! One report to the coordinator, and the order that answers it. It repeats nothing: when to report
//! again is the supervisor's.

use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use rljob_crds::names::TOKEN_LEARNER;
use rljob_protocol::supervisor::{EPOCH_HEADER, Order, SupervisorReport};
use rljob_storage::coordinator_resolver::CoordinatorResolver;

use crate::supervisor::Settings;

/// A report that takes longer is given up and sent anew.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// An address of a pod that is gone answers nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A report that was not answered with an order.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The token is missing.
    #[error("failed to read the token `{}`", .0.display())]
    Token(PathBuf, #[source] std::io::Error),
    /// No connection, or no answer.
    #[error("failed to reach the coordinator")]
    Unreachable(#[source] reqwest::Error),
    /// This one was replaced.
    #[error("the coordinator has another supervisor of this name: {0}")]
    Replaced(String),
    /// Another error of the coordinator.
    #[error("the coordinator answered {0}: {1}")]
    Refused(StatusCode, String),
    /// An answer that is no order.
    #[error("failed to understand the coordinator's order")]
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

/// The way to the coordinator.
#[derive(Debug)]
pub struct Reporter {
    http: reqwest::Client,
    url: String,
    token: PathBuf,
}

impl Reporter {
    /// To the coordinator of these settings, whose name leads where `resolver` says.
    pub fn new(settings: &Settings, resolver: CoordinatorResolver) -> reqwest::Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(REQUEST_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .dns_resolver(Arc::new(resolver))
            .no_proxy();
        let url = format!("{}/v1/supervisors/{}", settings.coordinator, settings.name);
        Ok(Self { http: http.build()?, url, token: settings.tokens.join(TOKEN_LEARNER) })
    }

    /// The order and the epoch that it is given under; `epoch` is the highest one that was heard
    /// of.
    pub async fn report(
        &self,
        report: &SupervisorReport,
        epoch: u64,
    ) -> Result<(u64, Order), ReportError> {
        // Read each time: it may be rotated.
        let token = tokio::fs::read_to_string(&self.token)
            .await
            .map_err(|error| ReportError::Token(self.token.clone(), error))?;
        let response = self
            .http
            .post(&self.url)
            .bearer_auth(token.trim())
            .json(report)
            .send()
            .await
            .map_err(ReportError::Unreachable)?;
        let (status, answered) = (response.status(), epoch_of(response.headers()));
        if status == StatusCode::CONFLICT && answered >= epoch {
            return Err(ReportError::Replaced(response.text().await.unwrap_or_default()));
        }
        if !status.is_success() {
            return Err(ReportError::Refused(status, response.text().await.unwrap_or_default()));
        }
        Ok((answered, response.json().await.map_err(ReportError::Order)?))
    }
}

/// The epoch of the coordinator that answers; 0 if it does not say.
fn epoch_of(headers: &HeaderMap) -> u64 {
    headers
        .get(EPOCH_HEADER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .unwrap_or_default()
}
