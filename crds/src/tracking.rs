//! Experiment trackers that a run sends its metrics and traces to.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Trackers: `mlflow`, `openTelemetry` or both. The run never waits for one: what a tracker that
/// does not respond could not take is sent later.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("has(self.mlflow) || has(self.openTelemetry)").message(NO_TRACKER)
)]
pub struct TrackingSpec {
    /// MLflow tracking server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<MlflowSpec>,
    /// Receiver of traces of steps by OpenTelemetry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_telemetry: Option<OpenTelemetrySpec>,
}

/// Message of a `tracking` without a tracker.
pub const NO_TRACKER: &str = "set mlflow, openTelemetry or both";

/// Path of traces below the endpoint of a receiver of OTLP over HTTP.
pub const TRACES_PATH: &str = "v1/traces";

impl TrackingSpec {
    /// URLs of the trackers.
    pub fn urls(&self) -> impl Iterator<Item = &str> {
        let mlflow = self.mlflow.iter().map(|mlflow| mlflow.uri.as_str());
        mlflow.chain(self.open_telemetry.iter().map(|receiver| receiver.endpoint.as_str()))
    }
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

/// Each completed step as a trace with the spans of coordinator, learners and engines, by OTLP over
/// HTTP with protobuf. The coordinator sends the headers in `OTEL_EXPORTER_OTLP_HEADERS`
/// (`NAME=VALUE,…`) of the environment of its container; set it from a Secret in
/// `coordinator.template`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OpenTelemetrySpec {
    /// Base URL of the receiver, such as `http://collector:4318`: traces are sent to `v1/traces`
    /// below it.
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ @?#]+(/[^ @?#]*)?$"))]
    pub endpoint: String,
}

fn experiment() -> String {
    "rljob".to_owned()
}
