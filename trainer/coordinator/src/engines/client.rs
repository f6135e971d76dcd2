//! SGLang's routes that a run uses, each with its deadline and key.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use rljob_http::ClientTls;
use rljob_protocol::sglang::{
    AbortRequest, Classified, ClassifyRequest, ContinueGeneration, DestroyWeightsUpdateGroup,
    GenerateRequest, GetWeightsByName, InitWeightsUpdateGroup, ModelInfo, PauseGeneration,
    ServerInfo, UpdateWeightsFromDisk, UpdateWeightsFromDistributed, WeightsAnswer,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engines::completions::Completions;
use crate::engines::error::{CONTROL_TIMEOUT, EngineError, SCHEDULER_TIMEOUT};
use crate::engines::output::Output;
use crate::engines::streams::OpenStream;
use crate::engines::transport::{Call, MAX_RESPONSE, Transport};
use crate::tokens::Token;

const POLL_TIMEOUT: Duration = Duration::from_secs(3);
/// Exceeds the 120 s for which the sender waits for the process group.
const INIT_GROUP_TIMEOUT: Duration = Duration::from_secs(150);
/// Time to read the weights of a large model.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(600);

/// Client for all engines, with shared connections and API keys.
#[derive(Clone)]
pub struct EngineClient {
    transport: Transport,
    completions: Arc<Completions>,
    api: Token,
    admin: Token,
}

impl EngineClient {
    /// A client of the engines that `tls` accepts. Without it, of engines on this machine in tests
    /// and benchmarks.
    pub fn new(api: Token, admin: Token, tls: Option<ClientTls>) -> Self {
        let transport = Transport::new(tls);
        let completions = Completions::new(transport.clone(), api.clone(), admin.clone());
        Self { transport, completions, api, admin }
    }

    /// A client with the same keys and certificate for other engines, without shared connections.
    #[must_use]
    pub fn separate(&self) -> Self {
        Self::new(self.api.clone(), self.admin.clone(), self.transport.tls())
    }

    /// Forgets engines whose URLs do not exist, and closes idle connections to them.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.completions.retain(&exists);
        self.transport.retain(exists);
    }

    /// `GET /model_info`.
    pub async fn model_info(&self, url: &str) -> Result<ModelInfo, EngineError> {
        self.get(url, "/model_info", POLL_TIMEOUT).await
    }

    /// `GET /server_info`.
    pub async fn server_info(&self, url: &str) -> Result<ServerInfo, EngineError> {
        self.get(url, "/server_info", POLL_TIMEOUT).await
    }

    /// Checks that the scheduler, which adds its state to `GET /server_info`, is not stuck.
    pub async fn scheduler_responds(&self, url: &str) -> Result<(), EngineError> {
        self.get::<ServerInfo>(url, "/server_info", SCHEDULER_TIMEOUT).await.map(drop)
    }

    /// `POST /freeze_gc`: Python's garbage collections no longer visit the objects that exist in
    /// the server's processes.
    pub async fn freeze_garbage_collector(&self, url: &str) -> Result<(), EngineError> {
        let token = &self.admin;
        let call = Call {
            method: Method::POST,
            route: "/freeze_gc",
            token,
            body: Bytes::new(),
            max_response: MAX_RESPONSE,
        };
        // The response is text.
        self.transport.exchange(url, &call, CONTROL_TIMEOUT).await.map(drop)
    }

    /// `POST /generate`, streamed into `output`. Events received before an error or a cancellation
    /// are kept. `open` ends with the response.
    pub async fn generate(
        &self,
        url: &str,
        request: Arc<GenerateRequest>,
        output: Output,
        open: OpenStream,
    ) -> Result<(), EngineError> {
        self.completions.generate(url, request, output, open).await
    }

    /// `POST /classify`: the output of a sequence classifier for a text, one number for each label.
    pub async fn classify(
        &self,
        url: &str,
        text: &str,
        deadline: Duration,
    ) -> Result<Classified, EngineError> {
        let route = "/classify";
        let call = Call::post(route, &self.api, &ClassifyRequest { text: text.to_owned() })?;
        parse(route, &self.transport.exchange(url, &call, deadline).await?)
    }

    /// `POST /generate` without a stream: the response, of up to `max_response` bytes.
    pub async fn generated(
        &self,
        url: &str,
        request: &impl Serialize,
        deadline: Duration,
        max_response: usize,
    ) -> Result<Vec<u8>, EngineError> {
        let call = Call::post("/generate", &self.api, request)?.up_to(max_response);
        self.transport.exchange(url, &call, deadline).await
    }

    /// `POST /abort_request` for all requests. Returns before their streams have ended.
    pub async fn abort_all(&self, url: &str) -> Result<(), EngineError> {
        let body = AbortRequest { rid: String::new(), abort_all: true };
        let call = Call::post("/abort_request", &self.admin, &body)?;
        // The response has no body.
        self.transport.exchange(url, &call, CONTROL_TIMEOUT).await.map(drop)
    }

    /// `POST /pause_generation`, mode `abort`. While a request runs, SGLang responds after a
    /// second.
    pub async fn pause(&self, url: &str) -> Result<(), EngineError> {
        let body = PauseGeneration { mode: "abort".to_owned() };
        self.control::<serde_json::Value>(url, "/pause_generation", &body, CONTROL_TIMEOUT)
            .await
            .map(drop)
    }

    /// `POST /continue_generation`.
    pub async fn resume(&self, url: &str) -> Result<(), EngineError> {
        let body = ContinueGeneration {};
        self.control::<serde_json::Value>(url, "/continue_generation", &body, CONTROL_TIMEOUT)
            .await
            .map(drop)
    }

    /// `POST /update_weights_from_disk`.
    pub async fn update_from_disk(
        &self,
        url: &str,
        body: &UpdateWeightsFromDisk,
    ) -> Result<(), EngineError> {
        self.change(url, "/update_weights_from_disk", body, UPDATE_TIMEOUT).await
    }

    /// `POST /init_weights_update_group`; returns after the sender has joined.
    pub async fn init_group(
        &self,
        url: &str,
        body: &InitWeightsUpdateGroup,
    ) -> Result<(), EngineError> {
        self.change(url, "/init_weights_update_group", body, INIT_GROUP_TIMEOUT).await
    }

    /// `POST /update_weights_from_distributed`. `deadline` is at least [`CONTROL_TIMEOUT`], so that
    /// an engine that misses it counts as hung.
    pub async fn update_from_distributed(
        &self,
        url: &str,
        body: &UpdateWeightsFromDistributed,
        deadline: Duration,
    ) -> Result<(), EngineError> {
        self.change(url, "/update_weights_from_distributed", body, deadline).await
    }

    /// `POST /destroy_weights_update_group`.
    pub async fn destroy_group(&self, url: &str, group: &str) -> Result<(), EngineError> {
        let body = DestroyWeightsUpdateGroup { group_name: group.to_owned() };
        self.change(url, "/destroy_weights_update_group", &body, CONTROL_TIMEOUT).await
    }

    /// `POST /get_weights_by_name`: the first `entries` of a parameter, numbers of a vector or rows
    /// of a matrix.
    pub async fn weights_by_name(
        &self,
        url: &str,
        name: &str,
        entries: u32,
    ) -> Result<serde_json::Value, EngineError> {
        let body = GetWeightsByName {
            name: name.to_owned(),
            truncate_size: usize::try_from(entries).unwrap_or(usize::MAX),
        };
        self.control(url, "/get_weights_by_name", &body, SCHEDULER_TIMEOUT).await
    }

    async fn get<T: DeserializeOwned>(
        &self,
        url: &str,
        route: &'static str,
        deadline: Duration,
    ) -> Result<T, EngineError> {
        let call = Call {
            method: Method::GET,
            route,
            token: &self.api,
            body: Bytes::new(),
            max_response: MAX_RESPONSE,
        };
        parse(route, &self.transport.exchange(url, &call, deadline).await?)
    }

    /// Calls a route of the admin key.
    async fn control<T: DeserializeOwned>(
        &self,
        url: &str,
        route: &'static str,
        body: &impl Serialize,
        deadline: Duration,
    ) -> Result<T, EngineError> {
        let call = Call::post(route, &self.admin, body)?;
        parse(route, &self.transport.exchange(url, &call, deadline).await?)
    }

    /// Calls a route that changes weights or groups.
    async fn change(
        &self,
        url: &str,
        route: &'static str,
        body: &impl Serialize,
        deadline: Duration,
    ) -> Result<(), EngineError> {
        let answer: WeightsAnswer = self.control(url, route, body, deadline).await?;
        if answer.success {
            return Ok(());
        }
        Err(EngineError::Rejected { route, status: StatusCode::OK, message: answer.message })
    }
}

fn parse<T: DeserializeOwned>(route: &'static str, bytes: &[u8]) -> Result<T, EngineError> {
    serde_json::from_slice(bytes).map_err(|error| invalid(route, &error))
}

fn invalid(route: &'static str, error: &serde_json::Error) -> EngineError {
    EngineError::InvalidResponse { route, message: error.to_string() }
}

#[cfg(test)]
mod tests;
