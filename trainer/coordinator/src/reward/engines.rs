//! Engines of the job that serve the reward model: each call goes to the one with the least load,
//! and to another one if it is lost.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rljob_protocol::sglang::Classified;
use tokio::sync::Semaphore;

use crate::engines::slots::Leased;
use crate::engines::{EngineError, Fleet, Lease, Place, Wanted, Weights};
use crate::reward::verifier::VerifierError;

/// Time for which a call waits for an engine before the engines count as unavailable.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(30);
/// Engines that a call may lose. Its text may be the cause, for example by its use of memory.
const MAX_LOST_ENGINES: u32 = 3;

/// The engines, and the limits of calls.
pub struct RewardEngines {
    /// `None` in checks of the data, which score nothing.
    fleet: Option<Arc<Fleet>>,
    timeout: Duration,
    slots: Semaphore,
}

impl fmt::Debug for RewardEngines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RewardEngines")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl RewardEngines {
    /// `concurrency` calls at a time, each of which may take `timeout_seconds` at an engine.
    pub fn new(fleet: Option<Arc<Fleet>>, timeout_seconds: u32, concurrency: u32) -> Self {
        let timeout = Duration::from_secs(timeout_seconds.into());
        Self { fleet, timeout, slots: Semaphore::new(concurrency as usize) }
    }

    /// The output of the classifier for a text, of the first engine that answers.
    pub async fn classify(&self, text: &str) -> Result<Classified, VerifierError> {
        let fleet = self.fleet.as_deref().ok_or(VerifierError::NoEngine(Duration::ZERO))?;
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.ok();
        let mut lost = 0_u32;
        loop {
            let lease = lease(fleet, text).await?;
            let source = match self.try_engine(fleet, &lease.engine, text).await {
                Ok(classified) => return Ok(classified),
                Err(source) => source,
            };
            let (name, is_lost) = (&lease.engine.name, is_lost(&source));
            if is_lost {
                fleet.failed(name);
                lost = lost.saturating_add(1);
            }
            if !is_lost || lost >= MAX_LOST_ENGINES {
                let source = Box::new(source);
                return Err(VerifierError::Engine { engine: name.clone(), source });
            }
            let error = crate::error_line(&source);
            tracing::debug!(engine = name, error, "another engine repeats the call");
        }
    }

    async fn try_engine(
        &self,
        fleet: &Fleet,
        engine: &Leased,
        text: &str,
    ) -> Result<Classified, EngineError> {
        let classified = tokio::select! {
            () = engine.lost.cancelled() => {
                return Err(EngineError::Aborted("the engine no longer responds".to_owned()));
            }
            classified = fleet.client.classify(&engine.url, text, self.timeout) => classified?,
        };
        engine.chunks.fetch_add(1, Ordering::Relaxed);
        Ok(classified)
    }
}

/// Reserves the engine with the least load, which is measured in bytes of texts: engines have the
/// tokenizer of the reward model.
async fn lease<'a>(fleet: &'a Fleet, text: &str) -> Result<Lease<'a>, VerifierError> {
    let wanted = Wanted {
        preferred: None,
        weights: Weights::Since(0),
        requests: 1,
        tokens: text.len() as u64,
    };
    tokio::time::timeout(ENGINE_TIMEOUT, fleet.lease(Place::default(), wanted))
        .await
        .map_err(|_| VerifierError::NoEngine(ENGINE_TIMEOUT))
}

/// Whether another engine may answer: this one did not.
fn is_lost(error: &EngineError) -> bool {
    matches!(error, EngineError::Unreachable { .. } | EngineError::Aborted(_))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::post;
    use rljob_crds::roles::InferenceSpec;
    use rljob_protocol::desired::EngineEndpoint;
    use rljob_protocol::status::EngineCondition::{Ready, Unreachable};

    use super::*;
    use crate::clock::Clock;
    use crate::engines::EngineClient;
    use crate::engines::suitability::Limits;
    use crate::tokens::Token;

    /// URL of a server that gives each text this score.
    async fn server(score: f64) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = format!("{{\"embedding\": [{score}]}}");
        let routes = Router::new().route("/classify", post(async move || answer));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        url
    }

    /// URL at which nothing listens.
    async fn refused() -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    /// Engines with these URLs, all of which have answered.
    fn fleet(urls: &[String]) -> Arc<Fleet> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), "key").unwrap();
        let token = Token::open(folder.path(), "key").unwrap();
        let client = EngineClient::new(token.clone(), token, None);
        let fleet = Fleet::with_fixed_weights(&InferenceSpec::default(), client, Clock::start());
        let name = |index| format!("reward-{index}");
        let endpoints = urls.iter().enumerate().map(|(index, url)| EngineEndpoint {
            name: name(index),
            url: url.clone(),
            uid: None,
        });
        fleet.set(&endpoints.collect::<Vec<_>>());
        for index in 0..urls.len() {
            fleet.update(&name(index), |slot| {
                slot.answered("default".to_owned());
                slot.described(Ok(Limits { requests: 8 }));
            });
        }
        Arc::new(fleet)
    }

    #[tokio::test]
    async fn another_engine_repeats_the_call_of_one_that_is_lost() {
        let engines = fleet(&[refused().await, server(0.5).await]);
        let ready = || {
            let states = engines.states(None);
            states.iter().map(|engine| engine.state).collect::<Vec<_>>()
        };
        assert_eq!(ready(), [Ready, Ready], "weights have no version");
        let rewards = RewardEngines::new(Some(Arc::clone(&engines)), 15, 64);
        assert_eq!(rewards.classify("text").await.unwrap().embedding, [0.5]);
        assert_eq!(ready(), [Unreachable, Ready]);
    }

    #[tokio::test]
    async fn completions_wait_while_no_engine_exists() {
        let error = RewardEngines::new(None, 15, 64).classify("text").await.unwrap_err();
        assert!(error.is_outage(), "{error}");
        let message = "no engine of the reward model was ready within 30 s";
        assert_eq!(VerifierError::NoEngine(ENGINE_TIMEOUT).to_string(), message);
    }
}
