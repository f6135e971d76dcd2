//! Sampling ahead of training, with real engines and learners: how stale samples get, and that a coordinator killed on the way loses and repeats nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_crds::names::{EVALUATION_SAMPLES_FILE, EVALUATIONS_FILE, JOURNAL_FILE, METRICS_FILE};
use rljob_protocol::status::{EvaluationMetrics, StepMetrics};
use rljob_tests::process::run;
use serde::de::DeserializeOwned;

use crate::local_run::{LocalRun, folder_with};

/// Steps of the job, prompts a step, samples a prompt.
const STEPS: u32 = 10;
const BATCH: u64 = 16;
const GROUP: u64 = 8;

/// The job's run directory after it has ended well.
fn finished(local: LocalRun, folder: &Path) -> PathBuf {
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    folder.join("runs/default/ahead")
}

fn lines<T: DeserializeOwned>(file: &Path) -> Vec<T> {
    fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Each step of the run once, in order.
fn steps(directory: &Path) -> Vec<StepMetrics> {
    let metrics: Vec<StepMetrics> = lines(&directory.join(METRICS_FILE));
    assert_eq!(metrics.iter().map(|metrics| metrics.step).collect::<Vec<_>>(), (1..=STEPS).collect::<Vec<_>>());
    metrics
}

/// What the journal says, as `sqlite3` prints it.
fn query(directory: &Path, sql: &str) -> String {
    let program = "import sqlite3, sys; print(*('|'.join(map(str, row)) for row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2])), sep='\\n')";
    let mut command = Command::new("python3");
    run(command.args(["-c", program]).arg(directory.join(JOURNAL_FILE)).arg(sql)).unwrap().trim().to_owned()
}

#[test]
fn samples_are_at_most_one_step_stale_and_some_are() {
    let folder = folder_with(include_str!("sampling_ahead/ahead.yaml"));
    let directory = finished(LocalRun::start(folder.path(), "runs"), folder.path());
    let mut staleness = BTreeMap::<u32, u32>::new();
    for metrics in steps(&directory) {
        for (steps, samples) in metrics.staleness {
            *staleness.entry(steps).or_default() += samples;
        }
    }
    assert_eq!(staleness.keys().copied().collect::<Vec<_>>(), [0, 1], "{staleness:?}");
    assert_eq!(u64::from(staleness.values().sum::<u32>()), u64::from(STEPS) * BATCH * GROUP);
    let evaluations: Vec<EvaluationMetrics> = lines(&directory.join(EVALUATIONS_FILE));
    assert!(evaluations.len() >= 3, "{evaluations:?}");
    for evaluation in evaluations {
        let pass = |k| evaluation.pass_at.get(&k).copied().unwrap();
        assert!((pass(1) - evaluation.sampled.unwrap()).abs() < 1e-9 && pass(1) <= pass(2) && pass(2) <= pass(4), "{evaluation:?}");
        assert_eq!(evaluation.majority_at.keys().copied().collect::<Vec<_>>(), [1, 2, 4], "{evaluation:?}");
    }
    assert!(!lines::<serde_json::Value>(&directory.join(EVALUATION_SAMPLES_FILE)).is_empty());
}

#[test]
fn a_coordinator_killed_while_it_samples_ahead_trains_every_prompt_once() {
    let folder = folder_with(include_str!("sampling_ahead/ahead.yaml"));
    let local = LocalRun::start(folder.path(), "runs");
    for step in [2, 5] {
        local.wait_for_steps("ahead", step);
        local.kill("rljob-coordinat");
    }
    local.wait_for_steps("ahead", 7);
    local.kill("rljob-engine");
    let directory = finished(local, folder.path());
    steps(&directory);
    let counts = query(&directory, "SELECT count(*), count(DISTINCT step) FROM batches");
    assert_eq!(counts, format!("{STEPS}|{STEPS}"));
    let expected: Vec<String> = (1..=u64::from(STEPS)).map(|step| format!("{step}|{}|{}", BATCH * GROUP, step * BATCH)).collect();
    assert_eq!(query(&directory, "SELECT step, samples, next_position FROM batches ORDER BY step"), expected.join("\n"));
}

#[test]
fn groups_with_equal_rewards_are_replaced_and_counted() {
    let folder = folder_with(include_str!("sampling_ahead/dynamic.yaml"));
    let directory = finished(LocalRun::start(folder.path(), "runs"), folder.path());
    let dropped: u32 = steps(&directory).iter().map(|metrics| metrics.dropped_groups).sum();
    assert!(dropped > 0);
    let used: u32 = query(&directory, "SELECT max(next_position) FROM batches").parse().unwrap();
    assert_eq!(u64::from(used), u64::from(STEPS) * BATCH + u64::from(dropped));
}
