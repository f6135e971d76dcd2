//! HTTP reward: one POST per completion to a server, with bounded concurrency.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use rljob_crds::reward::HttpReward;
use tokio::sync::Semaphore;

use crate::reward::external::{MAX_RESPONSE, Request, excerpt, parse, too_long};
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

#[derive(Debug)]
pub struct HttpVerifier {
    client: reqwest::Client,
    url: String,
    timeout: Duration,
    retries: u32,
    slots: Semaphore,
}

impl HttpVerifier {
    pub fn new(spec: &HttpReward) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .build()?,
            url: spec.url.clone(),
            timeout: Duration::from_secs(u64::from(spec.timeout_seconds)),
            retries: spec.retries,
            slots: Semaphore::new(spec.concurrency as usize),
        })
    }

    async fn post(&self, question: Question<'_>) -> Result<Score, VerifierError> {
        let request = self.client.post(&self.url).json(&Request::new(None, question));
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
        parse(&body, None)
    }
}

impl Verifier for HttpVerifier {
    fn description(&self) -> String {
        format!("http {}", without_secrets(&self.url))
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        async move {
            // The semaphore is never closed. The timeout starts after the wait for a slot.
            let _slot = self.slots.acquire().await.ok();
            tokio::time::timeout(self.timeout, self.post(question))
                .await
                .unwrap_or(Err(VerifierError::Timeout(self.timeout)))
        }
        .boxed()
    }

    fn retries(&self) -> u32 {
        self.retries
    }
}

/// Drops the URL, which may contain secrets; the description has it without them.
fn unreachable(error: reqwest::Error) -> VerifierError {
    VerifierError::Unreachable(error.without_url())
}

/// Removes user, password and query.
fn without_secrets(url: &str) -> String {
    let Ok(mut url) = reqwest::Url::parse(url) else {
        return "with an invalid URL".to_owned();
    };
    // Both fail only for URLs without a host, which have no credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.to_string()
}
