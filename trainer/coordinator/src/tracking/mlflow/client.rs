//! Client of MLflow's REST API (mlflow.org/docs/latest/rest-api.html).

use std::env;

use reqwest::{Method, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::tracking::server::{Server, ServerError};

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
    server: Server,
    credentials: Credentials,
}

impl Client {
    /// A client of the server at `uri`.
    ///
    /// # Errors
    /// `uri` cannot be the base of a URL, or the TLS library cannot start.
    pub fn new(uri: &str, credentials: Credentials) -> Result<Self, ServerError> {
        Ok(Self { server: Server::new("MLflow server", uri)?, credentials })
    }

    /// The experiment of this name, which is created if it does not exist.
    pub async fn experiment_id(&self, name: &str) -> Result<String, ServerError> {
        match self.experiment_by_name(name).await {
            Err(ServerError::Status { status: StatusCode::NOT_FOUND, .. }) => {}
            found => return found,
        }
        match self.post("experiments/create", &json!({"name": name})).await {
            Ok(Experiment { experiment_id }) => Ok(experiment_id),
            // Another run may have created it.
            Err(error) => self.experiment_by_name(name).await.map_err(|_| error),
        }
    }

    async fn experiment_by_name(&self, name: &str) -> Result<String, ServerError> {
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
    ) -> Result<T, ServerError> {
        let request = self.request(Method::POST, path)?.json(body);
        self.send(path, request).await
    }

    fn request(&self, method: Method, path: &'static str) -> Result<RequestBuilder, ServerError> {
        let request = self.server.request(method, &format!("api/2.0/mlflow/{path}"))?;
        Ok(self.credentials.of_request(request))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        path: &'static str,
        request: RequestBuilder,
    ) -> Result<T, ServerError> {
        let message = |body: &[u8]| {
            let reply: Value = serde_json::from_slice(body).ok()?;
            Some(reply.get("message")?.as_str()?.to_owned())
        };
        let body = self.server.send(path, request, message).await?;
        serde_json::from_slice(&body).map_err(|error| self.server.malformed(path, error))
    }
}
