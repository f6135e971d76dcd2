//! Tasks that copy metrics and traces of a run to its trackers.

use std::error::Error;

use tokio::task::JoinSet;

use crate::coordinator::Coordinator;
use crate::tracking::metrics::{MetricsCopy, MetricsTracker};
use crate::tracking::mlflow::{Credentials, Mlflow};
use crate::tracking::opentelemetry::{Headers, OpenTelemetry};
use crate::tracking::tensorboard::TensorBoard;
use crate::tracking::{Tracker, follow};

/// Starts a task for each tracker. One that cannot be used is reported as one that fails.
pub fn start(coordinator: &Coordinator, tasks: &mut JoinSet<()>) {
    let Coordinator { config, journal, recorder, incarnation, .. } = coordinator;
    let event_files = TensorBoard::open(&config.run_directory);
    start_one(coordinator, event_files.map(|files| copy(coordinator, files)), tasks);
    let Some(tracking) = &config.spec.tracking else { return };
    if let Some(spec) = &tracking.mlflow {
        let credentials = Credentials::of_environment();
        let mlflow = Mlflow::new(spec, config, credentials, journal.clone(), *incarnation);
        start_one(coordinator, mlflow.map(|mlflow| copy(coordinator, mlflow)), tasks);
    }
    if let Some(spec) = &tracking.open_telemetry {
        let traces = recorder.files.traces();
        let receiver = Headers::of_environment()
            .and_then(|headers| OpenTelemetry::new(spec, config, headers, traces, journal.clone()));
        start_one(coordinator, receiver, tasks);
    }
}

fn copy<T: MetricsTracker>(coordinator: &Coordinator, tracker: T) -> MetricsCopy<T> {
    let (journal, run) = (coordinator.journal.clone(), coordinator.run.clone());
    MetricsCopy { tracker, journal, run }
}

fn start_one<T: Tracker + 'static>(
    coordinator: &Coordinator,
    tracker: Result<T, impl Error + 'static>,
    tasks: &mut JoinSet<()>,
) {
    let failures = coordinator.tracker_failures.clone();
    match tracker {
        Ok(tracker) => {
            tasks.spawn(follow(tracker, failures, coordinator.stop.clone()));
        }
        Err(error) => {
            let error = crate::error_line(&error);
            tracing::warn!(tracker = T::NAME, error, "failed to start a tracker");
            failures.set(T::NAME, &error);
        }
    }
}
