//! MLflow: the run of a tracking server that a run's metrics and settings go to.
//!
//! ```text
//!  journal: key of the MLflow run ─▶ experiment, by name or new ─▶ run with the key, or new
//!    ─▶ log-batch: metrics of steps and of evaluations ─▶ update: FINISHED, FAILED or RUNNING
//! ```
//! The key is written before the run is created: a coordinator that was killed in between finds the
//! run by its tag. The server knows the newest step of each metric, which is the tracker's
//! position.

mod client;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use rljob_crds::RunConfig;
use rljob_crds::tracking::MlflowSpec;
use rljob_protocol::metrics::LOSS;
use rljob_protocol::status::Phase;
use serde_json::{Value, json};

use super::TrackerError;
use super::metrics::{MetricsTracker, Position, Records, scalars};
use super::server::ServerError;
use crate::persistence::journal::shared::SharedJournal;
pub use client::Credentials;
use client::{Client, Metric, MlflowRun, RunInfo, RunReply, SearchReply};

/// State of the journal with the key of the MLflow run.
pub const KEY: &str = "mlflow";
/// Tag of an MLflow run with its key.
const TAG: &str = "rljob.run";
/// Prefix of the metrics of evaluations.
const EVALUATION: &str = "evaluation/";
/// Limits of a request to log-batch.
const MAX_METRICS: usize = 1000;
const MAX_PARAMETERS: usize = 100;
/// Longest value of a parameter that every release of MLflow accepts, in bytes.
const MAX_VALUE: usize = 500;
/// Parts of the spec that are parameters of the MLflow run.
const PARAMETERS: [&str; 5] = ["model", "algorithm", "rollout", "optimizer", "training"];

/// The MLflow run of a run.
pub struct Mlflow {
    client: Client,
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
    ) -> Result<Self, ServerError> {
        let spec_json = serde_json::to_value(&config.spec).unwrap_or_default();
        Ok(Self {
            client: Client::new(&spec.uri, credentials)?,
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
        let experiment_id = self.client.experiment_id(&self.experiment).await?;
        let filter = format!("tags.`{TAG}` = '{key}'");
        let search = json!({"experiment_ids": [experiment_id], "filter": filter, "max_results": 1});
        let SearchReply { runs } = self.client.post("runs/search", &search).await?;
        let run = match runs.into_iter().next() {
            Some(run) => run,
            None => self.create(&key, &experiment_id).await?,
        };
        // A coordinator that was killed after the creation has left them out.
        if run.data.params.is_empty() {
            let log = json!({"run_id": run.info.run_id, "params": self.parameters});
            let _: Value = self.client.post("runs/log-batch", &log).await?;
        }
        Ok(run.into())
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

    async fn create(&self, key: &str, experiment_id: &str) -> Result<MlflowRun, ServerError> {
        let tags = [(TAG, key), ("mlflow.source.name", "rljob")]
            .map(|(key, value)| json!({"key": key, "value": value}));
        let create = json!({
            "experiment_id": experiment_id,
            "run_name": self.run_name,
            "start_time": milliseconds(),
            "tags": tags,
        });
        let RunReply { run } = self.client.post("runs/create", &create).await?;
        tracing::info!(run_id = run.info.run_id, "created an MLflow run");
        Ok(run)
    }
}

impl MetricsTracker for Mlflow {
    const NAME: &'static str = "MLflow";

    async fn position(&mut self) -> Result<Position, TrackerError> {
        Ok(self.connect().await?.position)
    }

    async fn add(&mut self, records: &Records) -> Result<(), TrackerError> {
        let run_id = self.connect().await?.run_id.clone();
        let metrics = metrics(records, milliseconds()).map_err(std::io::Error::from)?;
        for part in metrics.chunks(MAX_METRICS) {
            let log = json!({"run_id": run_id, "metrics": part});
            let _: Value = self.client.post("runs/log-batch", &log).await?;
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
        let _: Value = self.client.post("runs/update", &update).await?;
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
mod tests;
