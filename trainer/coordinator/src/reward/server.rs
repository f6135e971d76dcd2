//! Calls of servers that score completions, with bounded concurrency, time and size.

use std::time::Duration;

use tokio::sync::Semaphore;

use crate::reward::external::{MAX_RESPONSE, excerpt, too_long};
use crate::reward::verifier::VerifierError;

#[derive(Debug)]
pub struct Server {
    /// Follows no redirect.
    pub client: reqwest::Client,
    timeout: Duration,
    slots: Semaphore,
    /// In bytes.
    max_response: usize,
}

impl Server {
    pub fn new(timeout_seconds: u32, concurrency: u32) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .build()?,
            timeout: Duration::from_secs(u64::from(timeout_seconds)),
            slots: Semaphore::new(concurrency as usize),
            max_response: MAX_RESPONSE,
        })
    }

    /// A server whose responses have up to so many bytes.
    #[must_use]
    pub fn with_max_response(self, max_response: usize) -> Self {
        Self { max_response, ..self }
    }

    /// Sends a request and returns the body of a successful response.
    pub async fn call(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, VerifierError> {
        // The semaphore is never closed. The timeout starts after the wait for a slot.
        let _slot = self.slots.acquire().await.ok();
        tokio::time::timeout(self.timeout, exchange(request, self.max_response))
            .await
            .unwrap_or(Err(VerifierError::Timeout(self.timeout)))
    }
}

async fn exchange(
    request: reqwest::RequestBuilder,
    max_response: usize,
) -> Result<Vec<u8>, VerifierError> {
    let mut response = request.send().await.map_err(unreachable)?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > max_response {
            return Err(too_long(&body, max_response));
        }
    }
    let status = response.status();
    if !status.is_success() {
        return Err(VerifierError::Status { status, excerpt: excerpt(&body) });
    }
    Ok(body)
}

/// Drops the URL, which may contain secrets; the description has it without them.
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
