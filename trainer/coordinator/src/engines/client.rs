//! One engine's HTTP interface. Every call has a deadline, connections are reused, tokens travel in headers only.

use std::time::Duration;

use reqwest::{Response, StatusCode};
use rljob_protocol::sglang::{
    ContinueGeneration, DestroyWeightsUpdateGroup, GenerateRequest, InitWeightsUpdateGroup, ModelInfo, PauseGeneration, UpdateWeightsFromDisk,
    UpdateWeightsFromDistributed, WeightsAnswer,
};
use serde::Serialize;

use super::stream::Events;
use crate::tokens::Token;

const CONNECT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_secs(3);
const CONTROL: Duration = Duration::from_secs(60);
/// A group forms when the sender comes to it; a large model takes its time.
const UPDATE: Duration = Duration::from_secs(600);
/// A completion's deadline: this, and a second for each token it may have.
const GENERATE: Duration = Duration::from_secs(600);

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No answer.
    #[error("failed to reach the engine at {route}")]
    Unreachable {
        /// The route.
        route: &'static str,
        /// Why.
        source: reqwest::Error,
    },
    /// An answer that says no.
    #[error("the engine answered {route} with {status}: {message}")]
    Refused {
        /// The route.
        route: &'static str,
        /// HTTP status.
        status: StatusCode,
        /// The start of its body.
        message: String,
    },
    /// An answer that cannot be what was asked for.
    #[error("the engine's answer to {route} is unusable: {message}")]
    Garbage {
        /// The route.
        route: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The engine went away, or a weight update ended the request.
    #[error("the engine gave up the request: {0}")]
    Aborted(String),
    /// It was sampled with other weights than asked for.
    #[error("the completion is of weights `{found}`, expected {expected}")]
    OtherWeights {
        /// What the engine says.
        found: String,
        /// What was asked for.
        expected: String,
    },
}

/// The connections and tokens that all engines share.
#[derive(Clone)]
pub struct EngineClient {
    http: reqwest::Client,
    api: Token,
    admin: Token,
}

impl EngineClient {
    /// A client with an empty connection pool.
    pub fn new(api: Token, admin: Token) -> Result<Self, reqwest::Error> {
        let builder = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT).tcp_nodelay(true).tcp_keepalive(Duration::from_secs(10));
        Ok(Self { http: builder.pool_max_idle_per_host(super::slots::MAX_REQUESTS as usize).build()?, api, admin })
    }

    /// `GET /model_info`.
    pub async fn model_info(&self, url: &str) -> Result<ModelInfo, EngineError> {
        let route = "/model_info";
        let request = self.http.get(format!("{url}{route}")).bearer_auth(self.api.text()).timeout(POLL);
        read(route, request.send().await).await
    }

    /// `POST /generate`, streamed into `events`; what came before an error, or before this is dropped, stays there.
    pub async fn generate(&self, url: &str, request: &GenerateRequest, events: &mut Events) -> Result<(), EngineError> {
        let route = "/generate";
        let unreachable = |source| EngineError::Unreachable { route, source };
        let deadline = GENERATE + Duration::from_secs(request.sampling_params.max_new_tokens.into());
        let sent = self.http.post(format!("{url}{route}")).bearer_auth(self.api.text()).json(request).timeout(deadline).send().await;
        let mut response = accepted(route, sent.map_err(unreachable)?).await?;
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            events.push(&chunk).map_err(|error| EngineError::Garbage { route, message: error.to_string() })?;
        }
        Ok(())
    }

    /// `POST /pause_generation`, mode `abort`.
    pub async fn pause(&self, url: &str) -> Result<(), EngineError> {
        let body = PauseGeneration { mode: "abort".to_owned() };
        self.post::<serde_json::Value>(url, "/pause_generation", &body, &self.admin, CONTROL).await.map(drop)
    }

    /// `POST /continue_generation`.
    pub async fn resume(&self, url: &str) -> Result<(), EngineError> {
        self.post::<serde_json::Value>(url, "/continue_generation", &ContinueGeneration {}, &self.admin, CONTROL).await.map(drop)
    }

    /// `POST /update_weights_from_disk`.
    pub async fn update_from_disk(&self, url: &str, body: &UpdateWeightsFromDisk) -> Result<(), EngineError> {
        let route = "/update_weights_from_disk";
        succeeded(route, self.post(url, route, body, &self.admin, UPDATE).await?)
    }

    /// `POST /init_weights_update_group`; answers once the sender has joined.
    pub async fn init_group(&self, url: &str, body: &InitWeightsUpdateGroup) -> Result<(), EngineError> {
        let route = "/init_weights_update_group";
        succeeded(route, self.post(url, route, body, &self.admin, UPDATE).await?)
    }

    /// `POST /update_weights_from_distributed`.
    pub async fn update_from_distributed(&self, url: &str, body: &UpdateWeightsFromDistributed) -> Result<(), EngineError> {
        let route = "/update_weights_from_distributed";
        succeeded(route, self.post(url, route, body, &self.admin, UPDATE).await?)
    }

    /// `POST /destroy_weights_update_group`.
    pub async fn destroy_group(&self, url: &str, group: &str) -> Result<(), EngineError> {
        let route = "/destroy_weights_update_group";
        let body = DestroyWeightsUpdateGroup { group_name: group.to_owned() };
        succeeded(route, self.post(url, route, &body, &self.admin, CONTROL).await?)
    }

    async fn post<T: serde::de::DeserializeOwned>(
        &self,
        url: &str,
        route: &'static str,
        body: &impl Serialize,
        token: &Token,
        deadline: Duration,
    ) -> Result<T, EngineError> {
        let request = self.http.post(format!("{url}{route}")).bearer_auth(token.text()).json(body).timeout(deadline);
        read(route, request.send().await).await
    }
}

async fn read<T: serde::de::DeserializeOwned>(route: &'static str, sent: Result<Response, reqwest::Error>) -> Result<T, EngineError> {
    let unreachable = |source| EngineError::Unreachable { route, source };
    let bytes = accepted(route, sent.map_err(unreachable)?).await?.bytes().await.map_err(unreachable)?;
    serde_json::from_slice(&bytes).map_err(|error| EngineError::Garbage { route, message: error.to_string() })
}

/// The answer, if it is not an error; of an error, the start of its body.
async fn accepted(route: &'static str, response: Response) -> Result<Response, EngineError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let bytes = response.bytes().await.map_err(|source| EngineError::Unreachable { route, source })?;
    Err(EngineError::Refused { route, status, message: String::from_utf8_lossy(&bytes).chars().take(500).collect() })
}

fn succeeded(route: &'static str, answer: WeightsAnswer) -> Result<(), EngineError> {
    if answer.success { Ok(()) } else { Err(EngineError::Refused { route, status: StatusCode::OK, message: answer.message }) }
}
