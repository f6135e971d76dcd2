//! Experiment trackers that a run sends its metrics to.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Experiment trackers. The run never waits for one: while a tracker does not respond, its metrics
/// stay in the journal.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrackingSpec {
    /// MLflow tracking server.
    pub mlflow: MlflowSpec,
}

/// MLflow run with the metrics of steps and, as `evaluation/…`, of evaluations. The coordinator
/// authenticates with `MLFLOW_TRACKING_TOKEN`, or with `MLFLOW_TRACKING_USERNAME` and
/// `MLFLOW_TRACKING_PASSWORD`, from the environment of its container; set them from a Secret in
/// `coordinator.template`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MlflowSpec {
    /// URL of the tracking server.
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ @?#]+(/[^ @?#]*)?$"))]
    pub uri: String,
    /// Experiment of the run; created if it does not exist. Default `rljob`.
    #[serde(default = "experiment")]
    #[schemars(length(min = 1, max = 255))]
    pub experiment: String,
}

fn experiment() -> String {
    "rljob".to_owned()
}
