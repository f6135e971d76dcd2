//! Exchange of one request with an engine. Every exchange has a deadline, and every response except
//! a stream a maximum size; API keys are sent in headers only.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use rljob_http::ClientTls;
use serde::Serialize;

use crate::engines::connection::{Connection, ConnectionError, Connections};
use crate::engines::error::EngineError;
use crate::tokens::Token;

/// Maximum size of a response that is not a stream, in bytes, unless the call has another.
pub const MAX_RESPONSE: usize = 1 << 20;
/// Maximum length of an error body in messages, in characters.
const MAX_MESSAGE: usize = 500;

/// A request without its target.
pub struct Call<'a> {
    pub method: Method,
    pub route: &'static str,
    pub token: &'a Token,
    pub body: Bytes,
    /// Maximum size of the response, in bytes, unless it is a stream.
    pub max_response: usize,
}

/// Connections to all engines.
#[derive(Clone)]
pub struct Transport {
    connections: Arc<Connections>,
    tls: Option<ClientTls>,
}

impl Transport {
    pub fn new(tls: Option<ClientTls>) -> Self {
        Self { connections: Arc::default(), tls }
    }

    /// What it authenticates engines by.
    pub fn tls(&self) -> Option<ClientTls> {
        self.tls.clone()
    }

    /// Closes idle connections to URLs for which `exists` is false.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.connections.retain(exists);
    }

    /// Sends a request and reads the body of its response.
    pub async fn exchange(
        &self,
        url: &str,
        call: &Call<'_>,
        deadline: Duration,
    ) -> Result<Vec<u8>, EngineError> {
        let answered = async {
            let (mut connection, mut body) = self.accepted(url, call).await?;
            let bytes = collect(call, &mut connection, &mut body).await?;
            if bytes.len() > call.max_response {
                let message = format!("more than {} bytes", call.max_response);
                return Err(EngineError::InvalidResponse { route: call.route, message });
            }
            self.connections.put(url, connection);
            Ok(bytes)
        };
        within(deadline, call.route, answered).await
    }

    /// Sends a request, calls `begun` when a successful response begins, and passes each piece of
    /// its body to `take`.
    pub async fn stream(
        &self,
        url: &str,
        call: &Call<'_>,
        deadline: Duration,
        begun: impl FnOnce(),
        mut take: impl FnMut(&[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let streamed = async {
            let (mut connection, mut body) = self.accepted(url, call).await?;
            begun();
            while let Some(chunk) =
                connection.chunk(&mut body).await.map_err(|error| broken(call.route, error))?
            {
                take(&chunk)?;
            }
            self.connections.put(url, connection);
            Ok(())
        };
        within(deadline, call.route, streamed).await
    }

    /// Sends a request and returns the body of a successful response; otherwise an error with the
    /// start of the body.
    async fn accepted(
        &self,
        url: &str,
        call: &Call<'_>,
    ) -> Result<(Connection, Incoming), EngineError> {
        let (mut connection, response) = self.send(url, call).await?;
        let (status, mut body) = (response.status(), response.into_body());
        if status.is_success() {
            return Ok((connection, body));
        }
        let bytes = collect(call, &mut connection, &mut body).await?;
        Err(EngineError::Rejected {
            route: call.route,
            status,
            message: String::from_utf8_lossy(&bytes).chars().take(MAX_MESSAGE).collect(),
        })
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
}

impl<'a> Call<'a> {
    /// A call with a JSON body.
    pub fn post(
        route: &'static str,
        token: &'a Token,
        body: &impl Serialize,
    ) -> Result<Self, EngineError> {
        let body = serde_json::to_vec(body)
            .map_err(|error| EngineError::InvalidResponse { route, message: error.to_string() })?;
        let body = body.into();
        Ok(Self { method: Method::POST, route, token, body, max_response: MAX_RESPONSE })
    }

    /// A call whose response has up to so many bytes.
    #[must_use]
    pub fn up_to(self, max_response: usize) -> Self {
        Self { max_response, ..self }
    }

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

/// Reads a body, up to the chunk that exceeds the size of responses.
async fn collect(
    call: &Call<'_>,
    connection: &mut Connection,
    body: &mut Incoming,
) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    while bytes.len() <= call.max_response
        && let Some(chunk) =
            connection.chunk(body).await.map_err(|error| broken(call.route, error))?
    {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
