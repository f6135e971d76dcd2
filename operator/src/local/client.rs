//! The coordinator's two routes that whoever wants a run uses: `PUT /v1/desired` and `GET
//! /v1/status`.

use std::time::Duration;

use rljob_protocol::desired::Desired;
use rljob_protocol::status::CoordinatorStatus;

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A client of one run's coordinator.
#[derive(Debug)]
pub struct Coordinator {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Coordinator {
    /// A client for the coordinator on a port of this machine.
    ///
    /// # Errors
    /// The HTTP client cannot be made.
    pub fn new(port: u16, token: String) -> reqwest::Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .default_headers(crate::poll::protocol_headers())
            .build()?;
        Ok(Self { http, url: format!("http://127.0.0.1:{port}"), token })
    }

    /// The coordinator's state.
    ///
    /// # Errors
    /// It does not answer, or not with a status.
    pub async fn status(&self) -> reqwest::Result<CoordinatorStatus> {
        let request = self.http.get(format!("{}/v1/status", self.url)).bearer_auth(&self.token);
        request.send().await?.error_for_status()?.json().await
    }

    /// Says what is wanted.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub async fn put_desired(&self, desired: &Desired) -> reqwest::Result<()> {
        let request = self
            .http
            .put(format!("{}/v1/desired", self.url))
            .bearer_auth(&self.token)
            .json(desired);
        request.send().await?.error_for_status().map(drop)
    }
}
