//! Client of MLflow's REST API (mlflow.org/docs/latest/rest-api.html).

use std::env;
use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode, Url};
use rljob_http::{ReadError, read};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Of one request.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Longest response that is read.
const MAX_RESPONSE: usize = 4 << 20;

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum MlflowError {
    #[error("the MLflow server is unreachable")]
    Unreachable(#[source] reqwest::Error),
    /// The authority of the server's certificate is unknown. Has what to do about it.
    #[error("the MLflow server: {0}")]
    Untrusted(&'static str),
    #[error("the MLflow server responded to {path} with {status}: {message}")]
    Status { path: &'static str, status: StatusCode, message: String },
    #[error("the response of the MLflow server to {path} cannot be read")]
    Read {
        path: &'static str,
        #[source]
        source: ReadError,
    },
    #[error("the response of the MLflow server to {path} is not what its API defines")]
    Json {
        path: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("`{uri}` cannot be the base of a URL")]
    Uri { uri: String },
    #[error("failed to create the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// Credentials of a server.
#[derive(Clone)]
pub enum Credentials {
    None,
    Token(String),
    Password { user: String, password: String },
}

impl Credentials {
    /// Those of MLflow's environment variables.
    pub fn of_environment() -> Self {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(token) = variable("MLFLOW_TRACKING_TOKEN") {
            return Self::Token(token);
        }
        match (variable("MLFLOW_TRACKING_USERNAME"), variable("MLFLOW_TRACKING_PASSWORD")) {
            (Some(user), Some(password)) => Self::Password { user, password },
            _ => Self::None,
        }
    }

    fn of_request(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::None => request,
            Self::Token(token) => request.bearer_auth(token),
            Self::Password { user, password } => request.basic_auth(user, Some(password)),
        }
    }
}

#[derive(Deserialize)]
struct ExperimentReply {
    experiment: Experiment,
}

#[derive(Deserialize)]
struct Experiment {
    experiment_id: String,
}

/// Response to runs/create.
#[derive(Deserialize)]
pub struct RunReply {
    pub run: MlflowRun,
}

/// Response to runs/search.
#[derive(Deserialize)]
pub struct SearchReply {
    #[serde(default)]
    pub runs: Vec<MlflowRun>,
}

/// A run of MLflow.
#[derive(Deserialize)]
pub struct MlflowRun {
    pub info: RunInfo,
    #[serde(default)]
    pub data: RunData,
}

/// Identity and state.
#[derive(Deserialize)]
pub struct RunInfo {
    pub run_id: String,
    pub status: String,
}

/// Metrics and parameters.
#[derive(Default, Deserialize)]
pub struct RunData {
    /// Newest value of each metric.
    #[serde(default)]
    pub metrics: Vec<Metric>,
    #[serde(default)]
    pub params: Vec<Value>,
}

/// A value of a metric.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    pub key: String,
    pub value: f64,
    #[serde(default)]
    pub timestamp: i64,
    #[serde(default)]
    pub step: u32,
}

/// Client of a tracking server.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    credentials: Credentials,
}

impl Client {
    /// A client of the server at `uri`.
    ///
    /// # Errors
    /// `uri` cannot be the base of a URL, or the TLS library cannot start.
    pub fn new(uri: &str, credentials: Credentials) -> Result<Self, MlflowError> {
        let base = Url::parse(uri.trim_end_matches('/'))
            .map_err(|_| MlflowError::Uri { uri: uri.to_owned() })?;
        let http = rljob_http::outside_client()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()
            .map_err(MlflowError::Client)?;
        Ok(Self { http, base, credentials })
    }

    /// The experiment of this name, which is created if it does not exist.
    pub async fn experiment_id(&self, name: &str) -> Result<String, MlflowError> {
        match self.experiment_by_name(name).await {
            Err(MlflowError::Status { status: StatusCode::NOT_FOUND, .. }) => {}
            found => return found,
        }
        match self.post("experiments/create", &json!({"name": name})).await {
            Ok(Experiment { experiment_id }) => Ok(experiment_id),
            // Another run may have created it.
            Err(error) => self.experiment_by_name(name).await.map_err(|_| error),
        }
    }

    async fn experiment_by_name(&self, name: &str) -> Result<String, MlflowError> {
        let path = "experiments/get-by-name";
        let request = self.request(Method::GET, path)?;
        let request = request.query(&[("experiment_name", name)]);
        let ExperimentReply { experiment } = self.send(path, request).await?;
        Ok(experiment.experiment_id)
    }

    /// Response to a POST.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &'static str,
        body: &Value,
    ) -> Result<T, MlflowError> {
        let request = self.request(Method::POST, path)?.json(body);
        self.send(path, request).await
    }

    fn request(&self, method: Method, path: &'static str) -> Result<RequestBuilder, MlflowError> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| MlflowError::Uri { uri: self.base.to_string() })?
            .pop_if_empty()
            .extend(["api", "2.0", "mlflow"])
            .extend(path.split('/'));
        Ok(self.credentials.of_request(self.http.request(method, url)))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        path: &'static str,
        request: RequestBuilder,
    ) -> Result<T, MlflowError> {
        let unreachable = |error: reqwest::Error| match rljob_http::untrusted(&error) {
            Some(advice) => MlflowError::Untrusted(advice),
            None => MlflowError::Unreachable(error.without_url()),
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let body = read(response, MAX_RESPONSE)
            .await
            .map_err(|source| MlflowError::Read { path, source })?;
        if !status.is_success() {
            let reply: Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = reply.get("message").and_then(Value::as_str);
            let message = message.unwrap_or("without a message");
            let message = message.lines().next().unwrap_or_default().chars().take(200).collect();
            return Err(MlflowError::Status { path, status, message });
        }
        serde_json::from_slice(&body).map_err(|source| MlflowError::Json { path, source })
    }
}
