//! Experiment trackers: the metrics of a run in MLflow and in TensorBoard's event files, and its
//! traces in an OpenTelemetry Collector, each once, whatever fails meanwhile.

mod opentelemetry;

use std::fs;

use rljob_crds::names::{METRICS_FILE, TENSORBOARD_FILES};
use rljob_protocol::status::StepMetrics;
use rljob_tests::Mlflow;
use rljob_tests::files::{mlflow, required};
use rljob_tests::process::wait_until;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::local_run::{INTERRUPTED, JOBS, LIMIT, LocalRun, baseline, folder_with};

/// Steps of the job `practise`, so many that it does not end while a tracker's server is down:
/// trackers look at the run every 2 seconds.
const STEPS: u64 = 24;
/// Steps between two evaluations.
const EVERY: usize = 6;

/// A folder with the job `practise`.
fn folder() -> TempDir {
    folder_with(JOBS.split("---\n").nth(1).unwrap())
}

/// Starts or resumes the job of a folder with a tracker, from the model of the baseline.
fn start(folder: &TempDir, tracker: &str) -> LocalRun {
    let export = baseline().folder.join("baseline/default/imitate/export");
    let model = format!("spec.model={{path: {}}}", export.display());
    let tracking = format!("spec.tracking.{tracker}");
    let steps = format!("spec.training.steps={STEPS}");
    let sets = ["--set", &model, "--set", &tracking, "--set", &steps];
    LocalRun::start_with(folder.path(), "runs", &sets)
}

#[test]
fn a_run_is_tracked_by_mlflow_once_although_coordinator_and_server_are_killed() {
    if required(mlflow()).is_none() {
        return;
    }
    let mut mlflow = Mlflow::start().unwrap();
    let tracker = format!("mlflow={{uri: '{}', experiment: sums}}", mlflow.uri());
    let folder = folder();
    let local = start(&folder, &tracker);
    local.wait_for_steps("practise", 3);
    local.kill("rljob-coordinator");
    local.wait_for_steps("practise", 5);
    mlflow.kill().unwrap();
    wait_for_failure(&local, "MLflow: ");
    local.wait_for_steps("practise", 7);
    local.signal(Signal::INT);
    assert_eq!(local.end().0, Some(INTERRUPTED));
    mlflow.restart().unwrap();
    let local = start(&folder, &tracker);
    let directory = local.runs.join("default/practise");
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");

    let log = fs::read_to_string(directory.join("logs/coordinator.log")).unwrap();
    let run = only_run(&mlflow);
    let state = [&run["info"]["run_name"], &run["info"]["status"]];
    assert_eq!(state, ["default/practise", "FINISHED"], "{log}");
    assert!(parameters(&run).contains(&("algorithm.grpo.groupSize".into(), "8".into())), "{run:#}");
    let lines = fs::read_to_string(directory.join(METRICS_FILE)).unwrap();
    let losses: Vec<(u64, f64)> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .map(|metrics: StepMetrics| (metrics.step.into(), metrics.get("loss").unwrap()))
        .collect();
    assert_eq!(losses.len() as u64, STEPS);
    assert_eq!(history(&mlflow, &run, "loss"), losses, "{log}");
    let evaluated = history(&mlflow, &run, "evaluation/greedy");
    let evaluated: Vec<u64> = evaluated.into_iter().map(|(step, _)| step).collect();
    assert_eq!(evaluated, (0..=STEPS).step_by(EVERY).collect::<Vec<_>>());
    for file in TENSORBOARD_FILES {
        assert!(fs::metadata(directory.join(file)).unwrap().len() > 100, "{file}");
    }
}

/// Waits until the status of the run has a failure of a tracker that starts with `text`.
fn wait_for_failure(local: &LocalRun, text: &str) {
    let status = local.runs.join("default/practise/status.json");
    let failure = || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        // The file may be absent while it is replaced.
        let status: Value = serde_json::from_str(&text).unwrap_or_default();
        status["trackerFailure"].as_str().unwrap_or_default().to_owned()
    };
    wait_until("the failure in the status", LIMIT, || Ok(failure().starts_with(text))).unwrap();
}

/// The MLflow run of the experiment `sums`, which has no other.
fn only_run(mlflow: &Mlflow) -> Value {
    let experiment =
        mlflow.get("experiments/get-by-name?experiment_name=sums").unwrap()["experiment"].take();
    let search = json!({"experiment_ids": [experiment["experiment_id"]]});
    let mut runs = mlflow.post("runs/search", &search).unwrap()["runs"].take();
    assert_eq!(runs.as_array().map(Vec::len), Some(1), "{runs:#}");
    runs[0].take()
}

fn parameters(run: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let parameters = run["data"]["params"].as_array().unwrap().iter();
    parameters.map(|parameter| (text(&parameter["key"]), text(&parameter["value"]))).collect()
}

/// Steps and values of a metric.
fn history(mlflow: &Mlflow, run: &Value, metric: &str) -> Vec<(u64, f64)> {
    let id = run["info"]["run_id"].as_str().unwrap();
    let path = format!("metrics/get-history?run_id={id}&metric_key={metric}");
    let history = mlflow.get(&path).unwrap()["metrics"].take();
    let step = |value: &Value| value["step"].as_u64().unwrap_or_default();
    let points = history.as_array().into_iter().flatten();
    let mut points: Vec<(u64, f64)> =
        points.map(|point| (step(point), point["value"].as_f64().unwrap())).collect();
    points.sort_by_key(|(step, _)| *step);
    points
}
