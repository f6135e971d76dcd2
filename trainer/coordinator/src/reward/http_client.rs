//! HTTP client of verifiers and environments: one POST with a deadline and a bounded response, with
//! bounded concurrency.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::Semaphore;

use super::external::{MAX_RESPONSE, excerpt, too_long};
use super::verifier::VerifierError;

#[derive(Debug)]
pub struct HttpClient {
    client: reqwest::Client,
    timeout: Duration,
    slots: Semaphore,
}

impl HttpClient {
    pub fn new(timeout_seconds: u32, concurrency: u32) -> Result<Self, reqwest::Error> {
        let redirect = reqwest::redirect::Policy::none();
        Ok(Self {
            client: reqwest::Client::builder().redirect(redirect).build()?,
            timeout: Duration::from_secs(u64::from(timeout_seconds)),
            slots: Semaphore::new(concurrency as usize),
        })
    }

    /// Body of the response to a POST of `body` as JSON. The deadline starts after the wait for a
    /// slot.
    pub async fn post(&self, url: &str, body: &impl Serialize) -> Result<Vec<u8>, VerifierError> {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.ok();
        tokio::time::timeout(self.timeout, self.send(url, body))
            .await
            .unwrap_or(Err(VerifierError::Timeout(self.timeout)))
    }

    async fn send(&self, url: &str, body: &impl Serialize) -> Result<Vec<u8>, VerifierError> {
        let request = self.client.post(url).json(body);
        let mut response = request.send().await.map_err(unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_RESPONSE {
                return Err(too_long(&body));
            }
        }
        let status = response.status();
        if !status.is_success() {
            return Err(VerifierError::Status { status, excerpt: excerpt(&body) });
        }
        Ok(body)
    }
}

/// Drops the URL, which may contain secrets; labels have it without them.
fn unreachable(error: reqwest::Error) -> VerifierError {
    VerifierError::Unreachable(error.without_url())
}

/// Removes user, password and query.
pub fn without_secrets(url: &str) -> String {
    let Ok(mut url) = reqwest::Url::parse(url) else {
        return "with an invalid URL".to_owned();
    };
    // Both fail only for URLs without a host, which have no credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.to_string()
}
