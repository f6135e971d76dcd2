//! Client of the coordinator: `PUT /v1/desired` and `GET /v1/status`.

use std::time::Duration;

use rljob_http::{ClientTls, Role};
use rljob_protocol::desired::Desired;
use rljob_protocol::status::CoordinatorStatus;

use crate::desired::Tokens;

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
    /// Creates a client of the coordinator of the run with this UID on a port of this machine.
    ///
    /// # Errors
    /// The certificate cannot be used, or the HTTP client cannot be created.
    pub fn new(port: u16, tokens: Tokens, uid: &str) -> anyhow::Result<Self> {
        let pem = tokens.certificates.of(Role::Operator);
        let tls = ClientTls::of_pem(pem, &Role::Coordinator.server_name(uid))?;
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .default_headers(crate::poll::protocol_headers());
        let url = format!("https://127.0.0.1:{port}");
        Ok(Self { http: tls.client(http).build()?, url, token: tokens.operator })
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
