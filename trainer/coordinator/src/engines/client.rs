//! One engine's HTTP interface. Every call has a deadline, every answer a size, tokens travel in
//! headers only.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use rljob_protocol::sglang::{
    ContinueGeneration, DestroyWeightsUpdateGroup, GenerateRequest, InitWeightsUpdateGroup,
    ModelInfo, PauseGeneration, UpdateWeightsFromDisk, UpdateWeightsFromDistributed, WeightsAnswer,
};
use serde::Serialize;

use super::connection::{Connection, ConnectionError, Connections};
use super::stream::Events;
use crate::tokens::Token;

const POLL: Duration = Duration::from_secs(3);
const CONTROL: Duration = Duration::from_secs(60);
/// A group forms when its sender comes, which waits for 120 s at most.
const FORM: Duration = Duration::from_secs(150);
/// A large model takes its time.
const UPDATE: Duration = Duration::from_secs(600);
/// A completion's deadline: this, and a second for each token it may have.
const GENERATE: Duration = Duration::from_secs(600);
/// Longest answer that is no completion, in bytes.
const ANSWER: usize = 1 << 20;
/// What is told of an error's body, in characters.
const MESSAGE: usize = 500;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No answer.
    #[error("failed to reach the engine at {route}")]
    Unreachable {
        /// The route.
        route: &'static str,
        /// Why.
        source: ConnectionError,
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

impl EngineError {
    /// Whether nobody listened at its address: who does later is another process.
    pub fn nobody_listens(&self) -> bool {
        matches!(self, Self::Unreachable { source: ConnectionError::Connect(_), .. })
    }

    /// Whether the engine took a step of a weight update and never answered, though it had more
    /// than enough time: its server lives, and what would do the work does not.
    pub fn hangs(&self) -> bool {
        matches!(self, Self::Unreachable { source: ConnectionError::Deadline(deadline), .. } if *deadline >= CONTROL)
    }
}

/// A request but for the engine that it goes to.
struct Call<'a> {
    method: Method,
    route: &'static str,
    token: &'a Token,
    body: Bytes,
}

/// The connections and tokens that all engines share.
#[derive(Clone)]
pub struct EngineClient {
    connections: Arc<Connections>,
    api: Token,
    admin: Token,
}

impl EngineClient {
    /// A client without connections.
    pub fn new(api: Token, admin: Token) -> Self {
        Self { connections: Arc::default(), api, admin }
    }

    /// Closes idle connections to engines that are no more.
    pub fn keep(&self, wanted: impl Fn(&str) -> bool) {
        self.connections.keep(wanted);
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
            POLL,
        )
        .await
    }

    /// `POST /generate`, streamed into `events`; what came before an error, or before this is
    /// dropped, stays there.
    pub async fn generate(
        &self,
        url: &str,
        request: &GenerateRequest,
        events: &mut Events,
    ) -> Result<(), EngineError> {
        let deadline =
            GENERATE + Duration::from_secs(request.sampling_params.max_new_tokens.into());
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
        let (connection, response) = self.ask(url, call).await?;
        let (mut connection, mut body) = accepted(route, connection, response).await?;
        while let Some(chunk) =
            connection.chunk(&mut body).await.map_err(|error| broken(route, error))?
        {
            events
                .push(&chunk)
                .map_err(|error| EngineError::Garbage { route, message: error.to_string() })?;
        }
        self.connections.put(url, connection);
        Ok(())
    }

    /// `POST /pause_generation`, mode `abort`.
    pub async fn pause(&self, url: &str) -> Result<(), EngineError> {
        let body = PauseGeneration { mode: "abort".to_owned() };
        self.post::<serde_json::Value>(url, "/pause_generation", &body, &self.admin, CONTROL)
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
            CONTROL,
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
        succeeded(route, self.post(url, route, body, &self.admin, UPDATE).await?)
    }

    /// `POST /init_weights_update_group`; answers once the sender has joined.
    pub async fn init_group(
        &self,
        url: &str,
        body: &InitWeightsUpdateGroup,
    ) -> Result<(), EngineError> {
        let route = "/init_weights_update_group";
        succeeded(route, self.post(url, route, body, &self.admin, FORM).await?)
    }

    /// `POST /update_weights_from_distributed`.
    pub async fn update_from_distributed(
        &self,
        url: &str,
        body: &UpdateWeightsFromDistributed,
    ) -> Result<(), EngineError> {
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
        let answered = async {
            let (connection, response) = self.ask(url, &call).await?;
            self.read(url, call.route, connection, response).await
        };
        within(deadline, call.route, answered).await
    }

    /// Asks over an idle connection if there is one; over a new one if that was closed before
    /// anything was sent.
    async fn ask(
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
        let mut connection = Connection::open(url)
            .await
            .map_err(|source| EngineError::Unreachable { route: call.route, source })?;
        let response =
            connection.send(call.request()?).await.map_err(|error| broken(call.route, error))?;
        Ok((connection, response))
    }

    /// A whole answer as JSON.
    async fn read<T: serde::de::DeserializeOwned>(
        &self,
        url: &str,
        route: &'static str,
        connection: Connection,
        response: Response<Incoming>,
    ) -> Result<T, EngineError> {
        let garbage = |message| EngineError::Garbage { route, message };
        let (mut connection, mut body) = accepted(route, connection, response).await?;
        let bytes = collect(route, &mut connection, &mut body).await?;
        if bytes.len() > ANSWER {
            return Err(garbage(format!("more than {ANSWER} bytes")));
        }
        self.connections.put(url, connection);
        serde_json::from_slice(&bytes).map_err(|error| garbage(error.to_string()))
    }
}

impl Call<'_> {
    fn request(&self) -> Result<Request<Full<Bytes>>, EngineError> {
        let unfit =
            |_| EngineError::Unreachable { route: self.route, source: ConnectionError::Token };
        let mut token =
            HeaderValue::try_from(format!("Bearer {}", self.token.text())).map_err(unfit)?;
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
        .map_err(|error| EngineError::Garbage { route, message: error.to_string() })
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

/// A body, or a little more than `ANSWER` bytes of it.
async fn collect(
    route: &'static str,
    connection: &mut Connection,
    body: &mut Incoming,
) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    while bytes.len() <= ANSWER
        && let Some(chunk) = connection.chunk(body).await.map_err(|error| broken(route, error))?
    {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The answer's body, if it is not an error; of an error, the start of its body.
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
    Err(EngineError::Refused {
        route,
        status,
        message: String::from_utf8_lossy(&bytes).chars().take(MESSAGE).collect(),
    })
}

fn succeeded(route: &'static str, answer: WeightsAnswer) -> Result<(), EngineError> {
    if answer.success {
        Ok(())
    } else {
        Err(EngineError::Refused { route, status: StatusCode::OK, message: answer.message })
    }
}

#[cfg(test)]
mod tests;
