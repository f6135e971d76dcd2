//! Calls of servers that score completions, with bounded concurrency, time and size.

use std::time::Duration;

use reqwest::header::AUTHORIZATION;
use rljob_crds::storage::SecretKeyReference;
use tokio::sync::Semaphore;

use crate::reward::external::{MAX_RESPONSE, excerpt, too_long};
use crate::reward::token::{SecretToken, Token};
use crate::reward::verifier::VerifierError;

#[derive(Debug)]
pub struct Server {
    /// Follows no redirect, so that no other server gets the token.
    pub client: reqwest::Client,
    token: Option<SecretToken>,
    timeout: Duration,
    slots: Semaphore,
    /// In bytes.
    max_response: usize,
}

impl Server {
    pub fn new(timeout_seconds: u32, concurrency: u32) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: rljob_http::outside_client()
                .redirect(reqwest::redirect::Policy::none())
                .build()?,
            token: None,
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

    /// A server whose requests carry a token.
    #[must_use]
    pub fn with_token(self, reference: Option<&SecretKeyReference>) -> Self {
        Self { token: reference.map(SecretToken::new), ..self }
    }

    /// Sends a request and returns the body of a successful response.
    pub async fn call(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, VerifierError> {
        // The semaphore is never closed. The timeout starts after the wait for a slot.
        let _slot = self.slots.acquire().await.ok();
        tokio::time::timeout(self.timeout, self.exchange(request))
            .await
            .unwrap_or(Err(VerifierError::Timeout(self.timeout)))
    }

    async fn exchange(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, VerifierError> {
        let mut request = request.build().map_err(unreachable)?;
        let token = match &self.token {
            Some(secret) => Some(secret.read().await?),
            None => None,
        };
        if let Some(token) = &token {
            request.headers_mut().insert(AUTHORIZATION, token.header());
        }
        let mut response = self.client.execute(request).await.map_err(unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > self.max_response {
                break;
            }
        }
        let is_too_long = body.len() > self.max_response;
        if let Some(token) = &token {
            body = token.redact_response(body);
        }
        if is_too_long {
            return Err(too_long(&body, self.max_response));
        }
        let status = response.status();
        if status.is_success() {
            return Ok(body);
        }
        let sent = self.token.as_ref().zip(token.as_ref());
        Err(rejected(status, &String::from_utf8_lossy(&body), sent))
    }
}

/// The error of a status other than success. `sent` is the token of the request.
pub fn rejected(
    status: reqwest::StatusCode,
    message: &str,
    sent: Option<(&SecretToken, &Token)>,
) -> VerifierError {
    let message = sent.map_or_else(|| message.to_owned(), |(_, token)| token.redact(message));
    let excerpt = if status.is_redirection() {
        "redirects are not followed: set `url` to the target".to_owned()
    } else {
        excerpt(message.as_bytes())
    };
    match sent.filter(|_| matches!(status.as_u16(), 401 | 403)) {
        Some((secret, _)) => VerifierError::Token { status, secret: secret.to_string(), excerpt },
        None => VerifierError::Status { status, excerpt },
    }
}

/// Drops the URL, which may contain secrets; the description has it without them.
fn unreachable(error: reqwest::Error) -> VerifierError {
    match rljob_http::untrusted(&error) {
        Some(advice) => VerifierError::Untrusted(advice),
        None => VerifierError::Unreachable(error.without_url()),
    }
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

#[cfg(test)]
mod tests;
