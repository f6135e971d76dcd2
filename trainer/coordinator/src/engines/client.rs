//! Engine HTTP client. Every call has a deadline and a maximum response size; API keys are sent in
//! headers only.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use rljob_http::ClientTls;
use rljob_protocol::sglang::{
    AbortRequest, ContinueGeneration, DestroyWeightsUpdateGroup, GenerateRequest, InitWeightsUpdateGroup,
    ModelInfo, PauseGeneration, UpdateWeightsFromDisk, UpdateWeightsFromDistributed, WeightsAnswer,
};
use serde::Serialize;

use crate::engines::connection::{Connection, ConnectionError, Connections};
use crate::engines::stream::Events;
use crate::tokens::Token;

const POLL_TIMEOUT: Duration = Duration::from_secs(3);
const CONTROL_TIMEOUT: Duration = Duration::from_secs(60);
/// Exceeds the 120 s for which the sender waits for the process group.
const INIT_GROUP_TIMEOUT: Duration = Duration::from_secs(150);
/// Time for the weights of a large model.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(600);
/// Fixed part of a completion's deadline; each token adds a second.
const GENERATE_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum size of a response other than a completion, in bytes.
const MAX_RESPONSE: usize = 1 << 20;
/// Maximum length of an error body in messages, in characters.
const MAX_MESSAGE: usize = 500;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("failed to reach the engine at {route}")]
    Unreachable { route: &'static str, source: ConnectionError },
    #[error("the engine answered {route} with {status}: {message}")]
    Rejected {
        route: &'static str,
        status: StatusCode,
        /// Start of the response body.
        message: String,
    },
    #[error("the engine's response to {route} is invalid: {message}")]
    InvalidResponse { route: &'static str, message: String },
    /// The engine was lost, or a weight update aborted the request.
    #[error("the engine aborted the request: {0}")]
    Aborted(String),
    #[error("the completion was sampled with weights `{found}`, expected {expected}")]
    WrongWeights {
        /// As reported by the engine.
        found: String,
        expected: String,
    },
}

impl EngineError {
    /// Whether no process listened at the address. A later response is from a new process.
    pub fn is_connection_refused(&self) -> bool {
        matches!(self, Self::Unreachable { source: ConnectionError::Connect(_), .. })
    }

    /// Whether a weight-update call exceeded its deadline: the server accepts requests, but its
    /// scheduler is stuck.
    pub fn is_hang(&self) -> bool {
        matches!(self, Self::Unreachable { source: ConnectionError::Deadline(deadline), .. }
            if *deadline >= CONTROL_TIMEOUT)
    }
}

/// A request without its target.
struct Call<'a> {
    method: Method,
    route: &'static str,
    token: &'a Token,
    body: Bytes,
}

/// Client for all engines, with shared connections and API keys.
#[derive(Clone)]
pub struct EngineClient {
    connections: Arc<Connections>,
    api: Token,
    admin: Token,
    tls: Option<ClientTls>,
}

impl EngineClient {
    /// A client of the engines that `tls` accepts. Without it, of engines on this machine in tests
    /// and benchmarks.
    pub fn new(api: Token, admin: Token, tls: Option<ClientTls>) -> Self {
        Self { connections: Arc::default(), api, admin, tls }
    }

    /// Closes idle connections to URLs for which `exists` is false.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.connections.retain(exists);
    }

    /// `GET /model_info`.
    pub async fn model_info(&self, url: &str) -> Result<ModelInfo, EngineError> {
        self.call(
            url,
            Call {
                method: Method::GET,
                route: "/model_info",
                token: &self.api,
                body: Bytes::new(),
            },
            POLL_TIMEOUT,
        )
        .await
    }

    /// `POST /generate`, streamed into `events`. Events received before an error or a cancellation
    /// are kept.
    pub async fn generate(
        &self,
        url: &str,
        request: &GenerateRequest,
        events: &mut Events,
    ) -> Result<(), EngineError> {
        let sampling = Duration::from_secs(request.sampling_params.max_new_tokens.into());
        let deadline = GENERATE_TIMEOUT.saturating_add(sampling);
        let call = Call {
            method: Method::POST,
            route: "/generate",
            token: &self.api,
            body: json("/generate", request)?,
        };
        within(deadline, call.route, self.stream(url, &call, events)).await
    }

    async fn stream(
        &self,
        url: &str,
        call: &Call<'_>,
        events: &mut Events,
    ) -> Result<(), EngineError> {
        let route = call.route;
        let (connection, response) = self.send(url, call).await?;
        let (mut connection, mut body) = accepted(route, connection, response).await?;
        while let Some(chunk) =
            connection.chunk(&mut body).await.map_err(|error| broken(route, error))?
        {
            events.push(&chunk).map_err(|error| EngineError::InvalidResponse {
                route,
                message: error.to_string(),
            })?;
        }
        self.connections.put(url, connection);
        Ok(())
    }

    /// `POST /abort_request` for all requests. Returns before their streams have ended.
    pub async fn abort_all(&self, url: &str) -> Result<(), EngineError> {
        let route = "/abort_request";
        let body = json(route, &AbortRequest { rid: String::new(), abort_all: true })?;
        let call = Call { method: Method::POST, route, token: &self.admin, body };
        // The response has no body.
        self.exchange(url, &call, CONTROL_TIMEOUT).await.map(drop)
    }

    /// `POST /pause_generation`, mode `abort`. While a request runs, SGLang responds after a
    /// second.
    pub async fn pause(&self, url: &str) -> Result<(), EngineError> {
        let body = PauseGeneration { mode: "abort".to_owned() };
        self.post::<serde_json::Value>(
            url,
            "/pause_generation",
            &body,
            &self.admin,
            CONTROL_TIMEOUT,
        )
        .await
        .map(drop)
    }

    /// `POST /continue_generation`.
    pub async fn resume(&self, url: &str) -> Result<(), EngineError> {
        self.post::<serde_json::Value>(
            url,
            "/continue_generation",
            &ContinueGeneration {},
            &self.admin,
            CONTROL_TIMEOUT,
        )
        .await
        .map(drop)
    }

    /// `POST /update_weights_from_disk`.
    pub async fn update_from_disk(
        &self,
        url: &str,
        body: &UpdateWeightsFromDisk,
    ) -> Result<(), EngineError> {
        let route = "/update_weights_from_disk";
        succeeded(route, self.post(url, route, body, &self.admin, UPDATE_TIMEOUT).await?)
    }

    /// `POST /init_weights_update_group`; returns after the sender has joined.
    pub async fn init_group(
        &self,
        url: &str,
        body: &InitWeightsUpdateGroup,
    ) -> Result<(), EngineError> {
        let route = "/init_weights_update_group";
        succeeded(route, self.post(url, route, body, &self.admin, INIT_GROUP_TIMEOUT).await?)
    }

    /// `POST /update_weights_from_distributed`.
    pub async fn update_from_distributed(
        &self,
        url: &str,
        body: &UpdateWeightsFromDistributed,
    ) -> Result<(), EngineError> {
        let route = "/update_weights_from_distributed";
        succeeded(route, self.post(url, route, body, &self.admin, UPDATE_TIMEOUT).await?)
    }

    /// `POST /destroy_weights_update_group`.
    pub async fn destroy_group(&self, url: &str, group: &str) -> Result<(), EngineError> {
        let route = "/destroy_weights_update_group";
        let body = DestroyWeightsUpdateGroup { group_name: group.to_owned() };
        succeeded(route, self.post(url, route, &body, &self.admin, CONTROL_TIMEOUT).await?)
    }

    async fn post<T: serde::de::DeserializeOwned>(
        &self,
        url: &str,
        route: &'static str,
        body: &impl Serialize,
        token: &Token,
        deadline: Duration,
    ) -> Result<T, EngineError> {
        self.call(
            url,
            Call { method: Method::POST, route, token, body: json(route, body)? },
            deadline,
        )
        .await
    }

    async fn call<T: serde::de::DeserializeOwned>(
        &self,
        url: &str,
        call: Call<'_>,
        deadline: Duration,
    ) -> Result<T, EngineError> {
        let invalid = |error: serde_json::Error| EngineError::InvalidResponse {
            route: call.route,
            message: error.to_string(),
        };
        let bytes = self.exchange(url, &call, deadline).await?;
        serde_json::from_slice(&bytes).map_err(invalid)
    }

    /// Sends a request and reads the body of its response.
    async fn exchange(
        &self,
        url: &str,
        call: &Call<'_>,
        deadline: Duration,
    ) -> Result<Vec<u8>, EngineError> {
        let answered = async {
            let (connection, response) = self.send(url, call).await?;
            self.read(url, call.route, connection, response).await
        };
        within(deadline, call.route, answered).await
    }

    /// Sends a request over an idle connection, or over a new one if there are no open idle
    /// connections.
    async fn send(
        &self,
        url: &str,
        call: &Call<'_>,
    ) -> Result<(Connection, Response<Incoming>), EngineError> {
        if let Some(mut connection) = self.connections.reuse(url).await {
            match connection.send(call.request()?).await {
                Err(error) if error.is_canceled() => {}
                sent => return Ok((connection, sent.map_err(|error| broken(call.route, error))?)),
            }
        }
        let mut connection = Connection::open(url, self.tls.as_ref())
            .await
            .map_err(|source| EngineError::Unreachable { route: call.route, source })?;
        let response =
            connection.send(call.request()?).await.map_err(|error| broken(call.route, error))?;
        Ok((connection, response))
    }

    /// Reads the body of a successful response.
    async fn read(
        &self,
        url: &str,
        route: &'static str,
        connection: Connection,
        response: Response<Incoming>,
    ) -> Result<Vec<u8>, EngineError> {
        let (mut connection, mut body) = accepted(route, connection, response).await?;
        let bytes = collect(route, &mut connection, &mut body).await?;
        if bytes.len() > MAX_RESPONSE {
            let message = format!("more than {MAX_RESPONSE} bytes");
            return Err(EngineError::InvalidResponse { route, message });
        }
        self.connections.put(url, connection);
        Ok(bytes)
    }
}

impl Call<'_> {
    fn request(&self) -> Result<Request<Full<Bytes>>, EngineError> {
        let invalid =
            |_| EngineError::Unreachable { route: self.route, source: ConnectionError::Token };
        let mut token =
            HeaderValue::try_from(format!("Bearer {}", self.token.text())).map_err(invalid)?;
        token.set_sensitive(true);
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from_static(self.route);
        request.headers_mut().insert(AUTHORIZATION, token);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(request)
    }
}

fn json(route: &'static str, body: &impl Serialize) -> Result<Bytes, EngineError> {
    serde_json::to_vec(body)
        .map(Bytes::from)
        .map_err(|error| EngineError::InvalidResponse { route, message: error.to_string() })
}

fn broken(route: &'static str, error: hyper::Error) -> EngineError {
    EngineError::Unreachable { route, source: ConnectionError::Http(error) }
}

async fn within<T>(
    deadline: Duration,
    route: &'static str,
    asked: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    let late = |_| EngineError::Unreachable { route, source: ConnectionError::Deadline(deadline) };
    tokio::time::timeout(deadline, asked).await.map_err(late)?
}

/// Reads a body, up to the chunk that exceeds `MAX_RESPONSE`.
async fn collect(
    route: &'static str,
    connection: &mut Connection,
    body: &mut Incoming,
) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    while bytes.len() <= MAX_RESPONSE
        && let Some(chunk) = connection.chunk(body).await.map_err(|error| broken(route, error))?
    {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Returns the body of a successful response; otherwise an error with the start of the body.
async fn accepted(
    route: &'static str,
    mut connection: Connection,
    response: Response<Incoming>,
) -> Result<(Connection, Incoming), EngineError> {
    let (status, mut body) = (response.status(), response.into_body());
    if status.is_success() {
        return Ok((connection, body));
    }
    let bytes = collect(route, &mut connection, &mut body).await?;
    Err(EngineError::Rejected {
        route,
        status,
        message: String::from_utf8_lossy(&bytes).chars().take(MAX_MESSAGE).collect(),
    })
}

fn succeeded(route: &'static str, answer: WeightsAnswer) -> Result<(), EngineError> {
    if answer.success {
        Ok(())
    } else {
        Err(EngineError::Rejected { route, status: StatusCode::OK, message: answer.message })
    }
}

#[cfg(test)]
mod tests;
