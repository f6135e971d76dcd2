//! Engines of the job that serve a model which no step changes: each call goes to the one with the
//! least load, and to another one if it is lost.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rljob_crds::EnginePurpose;
use rljob_protocol::sglang::Classified;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::engines::slots::Leased;
use crate::engines::{EngineClient, EngineError, Fleet, Lease, Place, Wanted, Weights};
use crate::model_config;
use crate::reward::verifier::VerifierError;

/// Time for which a call waits for an engine before the engines count as unavailable.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(30);
/// Engines that a call may lose. Its text may be the cause, for example by its use of memory.
const MAX_LOST_ENGINES: u32 = 3;

/// The engines, and the limits of calls.
pub struct ModelEngines {
    /// Name of the model in messages.
    model: &'static str,
    /// `None` in checks of the data, which score nothing.
    fleet: Option<Arc<Fleet>>,
    timeout: Duration,
    slots: Semaphore,
}

impl fmt::Debug for ModelEngines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ModelEngines")
            .field("model", &self.model)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl ModelEngines {
    /// Engines of a fixed model. `concurrency` calls at a time, each of which may take
    /// `timeout_seconds` at an engine.
    pub fn new(
        purpose: EnginePurpose,
        fleet: Option<Arc<Fleet>>,
        timeout_seconds: u32,
        concurrency: u32,
    ) -> Self {
        let timeout = Duration::from_secs(timeout_seconds.into());
        let model = purpose.fixed_model().unwrap_or("model");
        Self { model, fleet, timeout, slots: Semaphore::new(concurrency as usize) }
    }

    /// The output of the classifier for a text, of the first engine that answers. The load is
    /// measured in bytes of texts: engines have the tokenizer of the reward model.
    pub async fn classify(&self, text: &str) -> Result<Classified, VerifierError> {
        let call = |client: EngineClient, url: String| async move {
            client.classify(&url, text, self.timeout).await
        };
        self.call(text.len() as u64, call).await
    }

    /// The response of `POST /generate`, of up to `max_response` bytes, of the first engine that
    /// answers. `load` is the number of the prompt's tokens.
    pub async fn generate(
        &self,
        request: &Value,
        load: u64,
        max_response: usize,
    ) -> Result<Vec<u8>, VerifierError> {
        let call = |client: EngineClient, url: String| async move {
            client.generated(&url, request, self.timeout, max_response).await
        };
        self.call(load, call).await
    }

    async fn call<T, F>(
        &self,
        load: u64,
        call: impl Fn(EngineClient, String) -> F,
    ) -> Result<T, VerifierError>
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        let fleet = self.fleet.as_deref().ok_or_else(|| self.no_engine(Duration::ZERO))?;
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.ok();
        let mut lost = 0_u32;
        loop {
            let lease = self.lease(fleet, load).await?;
            let engine = &lease.engine;
            let source = match answer(engine, call(fleet.client.clone(), engine.url.clone())).await
            {
                Ok(answer) => return Ok(answer),
                Err(source) => source,
            };
            let (name, is_lost) = (&engine.name, is_lost(&source));
            if is_lost {
                fleet.failed(name);
                lost = lost.saturating_add(1);
            }
            if !is_lost || lost >= MAX_LOST_ENGINES {
                let (engine, source) = (name.clone(), Box::new(source));
                return Err(VerifierError::Engine { model: self.model, engine, source });
            }
            let error = crate::error_line(&source);
            tracing::debug!(engine = name, error, "another engine repeats the call");
        }
    }

    /// Reserves the engine with the least load.
    async fn lease<'a>(&self, fleet: &'a Fleet, load: u64) -> Result<Lease<'a>, VerifierError> {
        let wanted =
            Wanted { preferred: None, weights: Weights::Since(0), requests: 1, tokens: load };
        tokio::time::timeout(ENGINE_TIMEOUT, fleet.lease(Place::default(), wanted))
            .await
            .map_err(|_| self.no_engine(ENGINE_TIMEOUT))
    }

    fn no_engine(&self, waited: Duration) -> VerifierError {
        VerifierError::NoEngine { model: self.model, waited }
    }
}

/// The answer of an engine to a request, unless it is lost meanwhile.
async fn answer<T>(
    engine: &Leased,
    request: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    let answer = tokio::select! {
        () = engine.lost.cancelled() => {
            return Err(EngineError::Aborted("the engine no longer responds".to_owned()));
        }
        answer = request => answer?,
    };
    engine.chunks.fetch_add(1, Ordering::Relaxed);
    Ok(answer)
}

/// Whether another engine may answer: this one did not.
fn is_lost(error: &EngineError) -> bool {
    matches!(error, EngineError::Unreachable { .. } | EngineError::Aborted(_))
}

/// Checks the `config.json` of a model that engines of the job serve. They wait for a folder that
/// does not exist yet, and may have volumes that this process lacks.
///
/// # Errors
/// The file cannot be read, or `check` names what it has instead.
pub fn check_folder(
    folder: &Path,
    check: impl FnOnce(&Value) -> Result<(), String>,
) -> Result<(), String> {
    let path = folder.join("config.json");
    let config = match model_config::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        config => config,
    };
    let config = config.map_err(|error| format!("failed to read {}: {error}", path.display()))?;
    check(&config).map_err(|what| format!("{} {what}", path.display()))
}

#[cfg(test)]
pub mod test_support;

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::post;
    use rljob_protocol::status::EngineCondition::{Ready, Unreachable};

    use super::test_support::{fleet, refused};
    use super::*;

    /// URL of a server that gives each text this score.
    async fn server(score: f64) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = format!("{{\"embedding\": [{score}]}}");
        let routes = Router::new().route("/classify", post(async move || answer));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        url
    }

    fn engines(fleet: Option<Arc<Fleet>>) -> ModelEngines {
        ModelEngines::new(EnginePurpose::Reward, fleet, 15, 64)
    }

    #[tokio::test]
    async fn another_engine_repeats_the_call_of_one_that_is_lost() {
        let fleet = fleet(&[refused().await, server(0.5).await]);
        let ready = || {
            let states = fleet.states(None);
            states.iter().map(|engine| engine.state).collect::<Vec<_>>()
        };
        assert_eq!(ready(), [Ready, Ready], "weights have no version");
        let rewards = engines(Some(Arc::clone(&fleet)));
        assert_eq!(rewards.classify("text").await.unwrap().embedding, [0.5]);
        assert_eq!(ready(), [Unreachable, Ready]);
    }

    #[tokio::test]
    async fn completions_wait_while_no_engine_exists() {
        let rewards = engines(None);
        let error = rewards.classify("text").await.unwrap_err();
        assert!(error.is_outage(), "{error}");
        let message = "no engine of the reward model was ready within 30 s";
        assert_eq!(rewards.no_engine(ENGINE_TIMEOUT).to_string(), message);
    }
}
