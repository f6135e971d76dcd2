//! MLflow, over its REST API (mlflow.org/docs/latest/rest-api.html).
//!
//! ```text
//!  journal: key of the MLflow run ─▶ experiment, by name or new ─▶ run with the key, or new
//!    ─▶ log-batch: metrics of steps and of evaluations ─▶ update: FINISHED, FAILED or RUNNING
//! ```
//! The key is written before the run is created: a coordinator that was killed in between finds the
//! run by its tag. The server knows the newest step of each metric, which is the tracker's
//! position.

use std::collections::BTreeMap;
use std::env;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::{Method, RequestBuilder, StatusCode, Url};
use rljob_crds::RunConfig;
use rljob_crds::tracking::MlflowSpec;
use rljob_http::{ReadError, read};
use rljob_protocol::metrics::LOSS;
use rljob_protocol::status::Phase;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Position, Records, Tracker, TrackerError, scalars};
use crate::persistence::journal::shared::SharedJournal;

/// State of the journal with the key of the MLflow run.
const KEY: &str = "mlflow";
/// Tag of an MLflow run with its key.
const TAG: &str = "rljob.run";
/// Prefix of the metrics of evaluations.
const EVALUATION: &str = "evaluation/";
/// Of one request.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Longest response that is read.
const MAX_RESPONSE: usize = 4 << 20;
/// Limits of a request to log-batch.
const MAX_METRICS: usize = 1000;
const MAX_PARAMETERS: usize = 100;
/// Longest value of a parameter that every release of MLflow accepts, in bytes.
const MAX_VALUE: usize = 500;
/// Parts of the spec that are parameters of the MLflow run.
const PARAMETERS: [&str; 5] = ["model", "algorithm", "rollout", "optimizer", "training"];

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum MlflowError {
    #[error("the MLflow server is unreachable")]
    Unreachable(#[source] reqwest::Error),
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

impl From<MlflowError> for TrackerError {
    fn from(error: MlflowError) -> Self {
        Self::Server(Box::new(error))
    }
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

/// The MLflow run of a run.
pub struct Mlflow {
    client: reqwest::Client,
    base: Url,
    credentials: Credentials,
    experiment: String,
    run_name: String,
    parameters: Vec<Value>,
    journal: SharedJournal,
    /// Random number of this process, for the key of a new run.
    incarnation: u64,
    connected: Option<Connected>,
}

/// The MLflow run as this process knows it.
struct Connected {
    run_id: String,
    position: Position,
    status: String,
}

#[derive(Deserialize)]
struct ExperimentReply {
    experiment: Experiment,
}

#[derive(Deserialize)]
struct Experiment {
    experiment_id: String,
}

#[derive(Deserialize)]
struct RunReply {
    run: MlflowRun,
}

#[derive(Deserialize)]
struct SearchReply {
    #[serde(default)]
    runs: Vec<MlflowRun>,
}

#[derive(Deserialize)]
struct MlflowRun {
    info: RunInfo,
    #[serde(default)]
    data: RunData,
}

#[derive(Deserialize)]
struct RunInfo {
    run_id: String,
    status: String,
}

#[derive(Default, Deserialize)]
struct RunData {
    /// Newest value of each metric.
    #[serde(default)]
    metrics: Vec<Metric>,
    #[serde(default)]
    params: Vec<Value>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Metric {
    key: String,
    value: f64,
    #[serde(default)]
    timestamp: i64,
    #[serde(default)]
    step: u32,
}

impl Mlflow {
    /// A tracker that connects at its first look.
    ///
    /// # Errors
    /// The URI of the server is not one, or the TLS library cannot start.
    pub fn new(
        spec: &MlflowSpec,
        config: &RunConfig,
        credentials: Credentials,
        journal: SharedJournal,
        incarnation: u64,
    ) -> Result<Self, MlflowError> {
        let uri = || MlflowError::Uri { uri: spec.uri.clone() };
        let base = Url::parse(spec.uri.trim_end_matches('/')).map_err(|_| uri())?;
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()
            .map_err(MlflowError::Client)?;
        let spec_json = serde_json::to_value(&config.spec).unwrap_or_default();
        Ok(Self {
            client,
            base,
            credentials,
            experiment: spec.experiment.clone(),
            run_name: format!("{}/{}", config.namespace, config.name),
            parameters: parameters(&spec_json),
            journal,
            incarnation,
            connected: None,
        })
    }

    /// The MLflow run, which is found or created.
    async fn connect(&mut self) -> Result<&mut Connected, TrackerError> {
        let connected = match self.connected.take() {
            Some(connected) => connected,
            None => self.find_or_create().await?,
        };
        Ok(self.connected.insert(connected))
    }

    async fn find_or_create(&self) -> Result<Connected, TrackerError> {
        let key = self.key().await?;
        let experiment_id = self.experiment_id().await?;
        let filter = format!("tags.`{TAG}` = '{key}'");
        let search = json!({"experiment_ids": [experiment_id], "filter": filter, "max_results": 1});
        let SearchReply { runs } = self.post("runs/search", &search).await?;
        let run = match runs.into_iter().next() {
            Some(run) => run,
            None => self.create(&key, &experiment_id).await?,
        };
        // A coordinator that was killed after the creation has left them out.
        if run.data.params.is_empty() {
            let log = json!({"run_id": run.info.run_id, "params": self.parameters});
            let _: Value = self.post("runs/log-batch", &log).await?;
        }
        Ok(run.into())
    }

    async fn create(&self, key: &str, experiment_id: &str) -> Result<MlflowRun, MlflowError> {
        let tags = [(TAG, key), ("mlflow.source.name", "rljob")]
            .map(|(key, value)| json!({"key": key, "value": value}));
        let create = json!({
            "experiment_id": experiment_id,
            "run_name": self.run_name,
            "start_time": milliseconds(),
            "tags": tags,
        });
        let RunReply { run } = self.post("runs/create", &create).await?;
        tracing::info!(run_id = run.info.run_id, "created an MLflow run");
        Ok(run)
    }

    /// The run's key, which is new if the journal has none.
    async fn key(&self) -> Result<String, TrackerError> {
        let new = format!("{}/{:016x}", self.run_name, self.incarnation);
        let key = self.journal.call(move |journal| {
            if let Some(Value::String(key)) = journal.get_state(KEY)? {
                return Ok(key);
            }
            journal.put_state(KEY, &Value::String(new.clone()))?;
            Ok(new)
        });
        Ok(key.await?)
    }

    async fn experiment_id(&self) -> Result<String, MlflowError> {
        match self.experiment_by_name().await {
            Err(MlflowError::Status { status: StatusCode::NOT_FOUND, .. }) => {}
            found => return found,
        }
        match self.post("experiments/create", &json!({"name": self.experiment})).await {
            Ok(Experiment { experiment_id }) => Ok(experiment_id),
            // Another run may have created it.
            Err(error) => self.experiment_by_name().await.map_err(|_| error),
        }
    }

    async fn experiment_by_name(&self) -> Result<String, MlflowError> {
        let path = "experiments/get-by-name";
        let request = self.request(Method::GET, path)?;
        let request = request.query(&[("experiment_name", &self.experiment)]);
        let ExperimentReply { experiment } = self.send(path, request).await?;
        Ok(experiment.experiment_id)
    }

    async fn post<T: DeserializeOwned>(
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
        Ok(self.credentials.of_request(self.client.request(method, url)))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        path: &'static str,
        request: RequestBuilder,
    ) -> Result<T, MlflowError> {
        let unreachable = |error: reqwest::Error| MlflowError::Unreachable(error.without_url());
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

impl Tracker for Mlflow {
    const NAME: &'static str = "MLflow";

    async fn position(&mut self) -> Result<Position, TrackerError> {
        Ok(self.connect().await?.position)
    }

    async fn add(&mut self, records: &Records) -> Result<(), TrackerError> {
        let run_id = self.connect().await?.run_id.clone();
        let metrics = metrics(records, milliseconds()).map_err(std::io::Error::from)?;
        for part in metrics.chunks(MAX_METRICS) {
            let log = json!({"run_id": run_id, "metrics": part});
            let _: Value = self.post("runs/log-batch", &log).await?;
        }
        let position = &mut self.connect().await?.position;
        if let Some(metrics) = records.steps.last() {
            position.step = metrics.step;
        }
        if let Some(metrics) = records.evaluations.last() {
            position.evaluation = Some(metrics.step);
        }
        Ok(())
    }

    async fn note(&mut self, phase: Phase) -> Result<(), TrackerError> {
        let status = match phase {
            Phase::Finished => "FINISHED",
            Phase::Failed => "FAILED",
            _ => "RUNNING",
        };
        let connected = self.connect().await?;
        if connected.status == status {
            return Ok(());
        }
        let ended = (status != "RUNNING").then(milliseconds);
        let update = json!({"run_id": connected.run_id, "status": status, "end_time": ended});
        let _: Value = self.post("runs/update", &update).await?;
        status.clone_into(&mut self.connect().await?.status);
        Ok(())
    }
}

impl From<MlflowRun> for Connected {
    fn from(run: MlflowRun) -> Self {
        let steps: BTreeMap<&str, u32> =
            run.data.metrics.iter().map(|metric| (metric.key.as_str(), metric.step)).collect();
        let evaluated = steps.iter().filter(|(key, _)| key.starts_with(EVALUATION));
        let evaluation = evaluated.map(|(_, step)| *step).max();
        // Every step has a loss.
        let step = steps.get(LOSS).copied().unwrap_or_default();
        let RunInfo { run_id, status } = run.info;
        Self { run_id, status, position: Position { step, evaluation } }
    }
}

/// Metrics of the records. The loss of a step comes last, since it is the position of steps.
fn metrics(records: &Records, timestamp: i64) -> serde_json::Result<Vec<Metric>> {
    let mut metrics = Vec::new();
    for record in &records.evaluations {
        let named = |(key, value)| {
            let key = format!("{EVALUATION}{key}");
            Metric { key, value, timestamp, step: record.step }
        };
        metrics.extend(scalars(record)?.into_iter().map(named));
    }
    for record in &records.steps {
        let mut numbers = scalars(record)?;
        numbers.sort_by_key(|(key, _)| key == LOSS);
        let named = |(key, value)| Metric { key, value, timestamp, step: record.step };
        metrics.extend(numbers.into_iter().map(named));
    }
    Ok(metrics)
}

/// Settings of a spec as parameters, by their paths.
fn parameters(spec: &Value) -> Vec<Value> {
    let mut leaves = Vec::new();
    for part in PARAMETERS {
        collect(part, &spec[part], &mut leaves);
    }
    leaves.truncate(MAX_PARAMETERS);
    leaves.into_iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
}

fn collect(path: &str, value: &Value, leaves: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, value)| collect(&format!("{path}.{name}"), value, leaves)),
        Value::Null => {}
        Value::String(text) => leaves.push((path.to_owned(), shortened(text))),
        other => leaves.push((path.to_owned(), shortened(&other.to_string()))),
    }
}

fn shortened(text: &str) -> String {
    text.chars()
        .scan(0_usize, |bytes, character| {
            *bytes = bytes.saturating_add(character.len_utf8());
            (*bytes <= MAX_VALUE).then_some(character)
        })
        .collect()
}

/// Unix time in milliseconds.
fn milliseconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rljob_protocol::metrics::{EvaluationMetrics, StepMetrics};

    #[test]
    fn metrics_of_evaluations_have_a_prefix_and_the_loss_of_a_step_is_last() {
        let records = Records {
            steps: vec![StepMetrics::with_scalars(7, [(LOSS, 0.5), ("reward", 1.0)])],
            evaluations: vec![EvaluationMetrics {
                step: 5,
                greedy: Some(0.25),
                ..EvaluationMetrics::default()
            }],
        };
        let found = metrics(&records, 9).unwrap();
        let named = |key: &str| found.iter().find(|metric| metric.key == key).unwrap();
        let metric =
            |key: &str, value, step| Metric { key: key.to_owned(), value, timestamp: 9, step };
        assert_eq!(*named("evaluation/greedy"), metric("evaluation/greedy", 0.25, 5));
        assert_eq!(*named("reward"), metric("reward", 1.0, 7));
        assert_eq!(found.last(), Some(&metric("loss", 0.5, 7)));
    }

    #[test]
    fn parameters_are_the_settings_of_training_without_rewards_and_storage() {
        let spec = json!({
            "algorithm": {"grpo": {"groupSize": 8}}, "training": {"steps": 3},
            "model": {"path": "é".repeat(400)}, "rewards": [{"http": {"url": "secret"}}],
        });
        let expected = [
            json!({"key": "model.path", "value": "é".repeat(250)}),
            json!({"key": "algorithm.grpo.groupSize", "value": "8"}),
            json!({"key": "training.steps", "value": "3"}),
        ];
        assert_eq!(parameters(&spec), expected);
    }

    #[test]
    fn the_position_is_read_from_the_newest_values_of_the_server() {
        let run: MlflowRun = serde_json::from_value(json!({
            "info": {"run_id": "a", "status": "RUNNING", "user_id": ""},
            "data": {"metrics": [
                {"key": "loss", "value": 1.0, "timestamp": 1, "step": 12},
                {"key": "reward", "value": 1.0, "timestamp": 1, "step": 13},
                {"key": "evaluation/greedy", "value": 1.0, "timestamp": 1, "step": 10},
            ]},
        }))
        .unwrap();
        let position = Connected::from(run).position;
        assert_eq!(position, Position { step: 12, evaluation: Some(10) });
    }
}
