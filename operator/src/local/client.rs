//! Client of the coordinator: `PUT /v1/desired` and `GET /v1/status`.

use std::time::Duration;

use rljob_protocol::desired::Desired;
use rljob_protocol::status::CoordinatorStatus;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Client of a run's coordinator.
#[derive(Debug)]
pub struct Coordinator {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Coordinator {
    /// Creates a client of the coordinator on a port of this machine.
    ///
    /// # Errors
    /// The HTTP client cannot be created.
    pub fn new(port: u16, token: String) -> reqwest::Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .default_headers(crate::poll::protocol_headers())
            .build()?;
        Ok(Self { http, url: format!("http://127.0.0.1:{port}"), token })
    }

    /// Gets the status.
    ///
    /// # Errors
    /// The request fails or the response is not a status.
    pub async fn status(&self) -> reqwest::Result<CoordinatorStatus> {
        let request = self.http.get(format!("{}/v1/status", self.url)).bearer_auth(&self.token);
        request.send().await?.error_for_status()?.json().await
    }

    /// Sends the desired state.
    ///
    /// # Errors
    /// The request fails or is rejected.
    pub async fn put_desired(&self, desired: &Desired) -> reqwest::Result<()> {
        let request = self
            .http
            .put(format!("{}/v1/desired", self.url))
            .bearer_auth(&self.token)
            .json(desired);
        request.send().await?.error_for_status().map(drop)
    }
}
