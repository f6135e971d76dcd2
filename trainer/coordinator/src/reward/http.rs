//! `reward.http`: a server of the user's own. One POST a completion, so many at once and no more.

use std::time::Duration;

use rljob_crds::reward::HttpReward;
use tokio::sync::Semaphore;

use super::remote::{MAX_ANSWER, Request, TryError, excerpt, parse};
use super::{Question, Reward};

/// A server.
#[derive(Debug)]
pub struct Http {
    client: reqwest::Client,
    url: String,
    timeout: Duration,
    slots: Semaphore,
}

impl Http {
    /// A client of the server that the spec names.
    pub fn new(spec: &HttpReward) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .build()?,
            url: spec.url.clone(),
            timeout: Duration::from_secs(u64::from(spec.timeout_seconds)),
            slots: Semaphore::new(spec.concurrency as usize),
        })
    }

    /// One try. Its time begins when it has a slot.
    pub async fn score(&self, question: Question<'_>) -> Result<Reward, TryError> {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.ok();
        tokio::time::timeout(self.timeout, self.ask(question))
            .await
            .unwrap_or(Err(TryError::Slow(self.timeout)))
    }

    async fn ask(&self, question: Question<'_>) -> Result<Reward, TryError> {
        let request = self.client.post(&self.url).json(&Request::new(None, question));
        let mut response = request.send().await.map_err(unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ANSWER {
                return Err(TryError::nonsense(&body, &format!("longer than {MAX_ANSWER} bytes")));
            }
        }
        let status = response.status();
        if !status.is_success() {
            return Err(TryError::Status { status, excerpt: excerpt(&body) });
        }
        parse(&body, None)
    }
}

/// The address stands in the verifier's name already.
fn unreachable(error: reqwest::Error) -> TryError {
    TryError::Unreachable(error.without_url())
}
