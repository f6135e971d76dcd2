//! Reward of a reward model: `rljob-engine` serves the export of one job, and another job learns
//! from its scores.

use std::fs;

use rljob_crds::names::{EXPORT_DIR, METRICS_FILE};
use rljob_protocol::metrics::StepMetrics;

use super::served_model::ServedModel;
use super::{LocalRun, folder_with};

const JOBS: &str = include_str!("model_reward.yaml");

#[test]
fn a_policy_learns_from_the_scores_of_the_reward_model_of_an_earlier_job() {
    let port = ServedModel::free_port();
    let folder = folder_with(&JOBS.replace("PORT", &port.to_string()));
    let local = LocalRun::start(folder.path(), "runs");
    let runs = folder.path().join("runs/default");
    // The engine waits for the export.
    let judge = runs.join("judge").join(EXPORT_DIR);
    let _engine = ServedModel::start(port, &judge, &["--is-embedding"]);
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    let lines = fs::read_to_string(runs.join("please").join(METRICS_FILE)).unwrap();
    let steps = lines.lines().map(|line| serde_json::from_str::<StepMetrics>(line).unwrap());
    let scores: Vec<f64> = steps.map(|step| step.scalars.get("reward/scored").unwrap()).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let [first, last] = [&scores[..3], &scores[9..]].map(mean);
    let range = scores.iter().fold(0.0_f64, |range, score| range.max((score - first).abs()));
    assert!(last > first + 0.5 * range, "{scores:?}");
}
