//! HTTP server of a tracker: requests below its URL, and responses of a bounded size.

use std::error::Error;
use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode, Url};
use rljob_http::{ReadError, read};

use super::TrackerError;

/// Of one request.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Longest response that is read.
const MAX_RESPONSE: usize = 4 << 20;
/// Most characters of a server's message.
const MAX_MESSAGE: usize = 200;

/// A request that failed. `server` is what the server is, such as `MLflow server`.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("the {server} is unreachable")]
    Unreachable { server: &'static str, source: reqwest::Error },
    /// The authority of the server's certificate is unknown. Has what to do about it.
    #[error("the {server}: {advice}")]
    Untrusted { server: &'static str, advice: &'static str },
    #[error("the {server} responded to {path} with {status}: {message}")]
    Status { server: &'static str, path: &'static str, status: StatusCode, message: String },
    #[error("the response of the {server} to {path} cannot be read")]
    Read { server: &'static str, path: &'static str, source: ReadError },
    #[error("the response of the {server} to {path} is not what its API defines")]
    Malformed { server: &'static str, path: &'static str, source: Box<dyn Error + Send + Sync> },
    #[error("`{url}` cannot be the base of a URL")]
    Url { url: String },
    #[error("failed to create the HTTP client")]
    Client(#[source] reqwest::Error),
}

impl From<ServerError> for TrackerError {
    fn from(error: ServerError) -> Self {
        Self::Server(Box::new(error))
    }
}

/// A server.
pub struct Server {
    name: &'static str,
    http: reqwest::Client,
    base: Url,
}

impl Server {
    /// The server at `url`, which errors call `name`.
    ///
    /// # Errors
    /// `url` cannot be the base of a URL, or the TLS library cannot start.
    pub fn new(name: &'static str, url: &str) -> Result<Self, ServerError> {
        let base = Url::parse(url.trim_end_matches('/'))
            .map_err(|_| ServerError::Url { url: url.to_owned() })?;
        let http = rljob_http::outside_client()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()
            .map_err(ServerError::Client)?;
        Ok(Self { name, http, base })
    }

    /// A request to a path below the URL, without a slash at either end.
    pub fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, ServerError> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| ServerError::Url { url: self.base.to_string() })?
            .pop_if_empty()
            .extend(path.split('/'));
        Ok(self.http.request(method, url))
    }

    /// Body of a successful response. `path` names the request in errors; `message` reads the
    /// message in the body of another response.
    pub async fn send(
        &self,
        path: &'static str,
        request: RequestBuilder,
        message: impl FnOnce(&[u8]) -> Option<String>,
    ) -> Result<Vec<u8>, ServerError> {
        let server = self.name;
        let unreachable = |error: reqwest::Error| match rljob_http::untrusted(&error) {
            Some(advice) => ServerError::Untrusted { server, advice },
            None => ServerError::Unreachable { server, source: error.without_url() },
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let body = read(response, MAX_RESPONSE).await.map_err(|source| ServerError::Read {
            server,
            path,
            source,
        })?;
        if status.is_success() {
            return Ok(body);
        }
        let message = message(&body).unwrap_or_else(|| "without a message".to_owned());
        let message = message.lines().next().unwrap_or_default().chars().take(MAX_MESSAGE);
        Err(ServerError::Status { server, path, status, message: message.collect() })
    }

    /// The error of a response that is not what the API defines.
    pub fn malformed(
        &self,
        path: &'static str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> ServerError {
        ServerError::Malformed { server: self.name, path, source: source.into() }
    }
}
