//! Asynchronous rollouts (`rollout.maxStaleness` above 0) with real engines and learners: staleness
//! of samples, and recovery of a coordinator killed while it samples ahead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rljob_crds::names::{EVALUATION_SAMPLES_FILE, EVALUATIONS_FILE, METRICS_FILE};
use rljob_protocol::metrics::{DROPPED_GROUPS, EvaluationMetrics, StepMetrics};
use serde::de::DeserializeOwned;

use crate::exact_recovery::{RunUnderFaults, Victim};
use crate::journal::query;
use crate::local_run::{LocalRun, folder_with};

mod finished;

/// Steps, prompts per step, samples per prompt.
const STEPS: u32 = 10;
const BATCH: u64 = 16;
const GROUP: u64 = 8;
const FIRST_CHECKPOINT: u32 = 4;

/// Waits for success and returns the run directory.
fn finished(local: LocalRun, folder: &Path) -> PathBuf {
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    folder.join("runs/default/ahead")
}

fn lines<T: DeserializeOwned>(file: &Path) -> Vec<T> {
    fs::read_to_string(file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Metrics of all steps; each step must appear once, in order.
fn steps(directory: &Path) -> Vec<StepMetrics> {
    let metrics: Vec<StepMetrics> = lines(&directory.join(METRICS_FILE));
    assert_eq!(
        metrics.iter().map(|metrics| metrics.step).collect::<Vec<_>>(),
        (1..=STEPS).collect::<Vec<_>>()
    );
    metrics
}

#[test]
fn staleness_is_at_most_one_step() {
    let folder = folder_with(include_str!("async_rollouts/ahead.yaml"));
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
    let last = evaluations.last().unwrap();
    assert_eq!((last.step, last.newer_tokens), (STEPS, None), "the last one is exact");
    for evaluation in evaluations {
        let beside = evaluation.step < STEPS;
        assert_eq!(evaluation.newer_tokens.is_some(), beside, "{evaluation:?}");
        assert_eq!(evaluation.rejected, Some(0), "{evaluation:?}");
        assert!(
            evaluation.sampled_standard_error.is_some()
                && evaluation.greedy_standard_error.is_some()
                && evaluation.pass_at_standard_error.len() == 3
                && evaluation.majority_at_standard_error.len() == 3,
            "{evaluation:?}"
        );
        let pass = |k| evaluation.pass_at.get(&k).copied().unwrap();
        assert!(
            (pass(1) - evaluation.sampled.unwrap()).abs() < 1e-9
                && pass(1) <= pass(2)
                && pass(2) <= pass(4),
            "{evaluation:?}"
        );
        assert_eq!(
            evaluation.majority_at.keys().copied().collect::<Vec<_>>(),
            [1, 2, 4],
            "{evaluation:?}"
        );
    }
    assert!(!lines::<serde_json::Value>(&directory.join(EVALUATION_SAMPLES_FILE)).is_empty());
}

/// Completions of the journal with tokens of several versions, and all.
fn completions(treatment: &str) -> (usize, usize) {
    let job = include_str!("async_rollouts/ahead.yaml")
        .replace("maxNewTokens: 8", "maxNewTokens: 48, minNewTokens: 48")
        .replace("method: Disk}", &format!("method: Disk, runningCompletions: {treatment}}}"));
    let folder = folder_with(&job);
    let directory = finished(LocalRun::start(folder.path(), "runs"), folder.path());
    let segments = query(&directory, "SELECT segments FROM samples WHERE step IS NOT NULL");
    let versions = |line: &str| {
        let segments: Vec<serde_json::Value> = serde_json::from_str(line).unwrap();
        segments.iter().map(|of| of["versions"].as_array().map_or(0, Vec::len)).max()
    };
    let counts: Vec<_> = segments.lines().filter_map(versions).collect();
    (counts.iter().filter(|count| **count > 1).count(), counts.len())
}

#[test]
fn completions_that_finish_before_an_update_have_tokens_of_one_version() {
    let (interrupted, all) = completions("Recompute");
    assert!(interrupted > 0, "updates interrupt some of {all} completions");
    let (interrupted, all) = completions("Finish");
    assert_eq!(interrupted, 0, "of {all} completions");
}

#[test]
fn every_prompt_is_trained_once_after_coordinator_kills() {
    let folder = folder_with(include_str!("async_rollouts/ahead.yaml"));
    let local = LocalRun::start(folder.path(), "runs");
    for step in [2, 5] {
        local.wait_for_steps("ahead", step);
        local.kill("rljob-coordinator");
    }
    local.wait_for_steps("ahead", 7);
    local.kill("rljob-engine");
    let directory = finished(local, folder.path());
    steps(&directory);
    let counts = query(&directory, "SELECT count(*), count(DISTINCT step) FROM batches");
    assert_eq!(counts, format!("{STEPS}|{STEPS}"));
    let expected: Vec<String> = (1..=u64::from(STEPS))
        .map(|step| format!("{step}|{}|{}", BATCH * GROUP, step * BATCH))
        .collect();
    assert_eq!(
        query(&directory, "SELECT step, samples, next_position FROM batches ORDER BY step"),
        expected.join("\n")
    );
}

/// Samples in the journal, and those assigned to a batch, without the pruned samples before the
/// first checkpoint.
fn samples(directory: &Path) -> [BTreeSet<String>; 2] {
    let columns = "position, sample_index, data_row, reward, segments, hex(tokens), \
        hex(sampler_logprobs)";
    let samples =
        format!("{columns} FROM samples WHERE position >= {}", u64::from(FIRST_CHECKPOINT) * BATCH);
    let queries =
        [format!("SELECT {samples}"), format!("SELECT step, {samples} AND step IS NOT NULL")];
    queries.map(|sql| query(directory, &sql).lines().map(str::to_owned).collect())
}

#[test]
fn finished_samples_stay_in_their_batch_after_any_kill() {
    let folder = folder_with(include_str!("async_rollouts/ahead.yaml"));
    let mut run = RunUnderFaults::new(LocalRun::start(folder.path(), "runs"), "ahead");
    run.wait_for_steps(FIRST_CHECKPOINT as usize + 1);
    let copies = [Victim::Learner(0), Victim::Engine, Victim::Coordinator].map(|victim| {
        run.wait_for_log_lines(5);
        let copy = tempfile::tempdir().unwrap();
        run.copy_journal(copy.path());
        run.kill_after_log_lines(victim, 1);
        copy
    });
    let directory = finished(run.local, folder.path());
    steps(&directory);
    let left = samples(&directory);
    assert_eq!(left[1].len() as u64, u64::from(STEPS - FIRST_CHECKPOINT) * BATCH * GROUP);
    for copy in copies {
        let before = samples(copy.path());
        assert!(!before[1].is_empty(), "nothing was sampled before the kill");
        for (before, left) in before.iter().zip(&left) {
            assert_eq!(before.difference(left).collect::<Vec<_>>(), Vec::<&String>::new());
        }
    }
}

#[test]
fn groups_with_zero_reward_variance_are_replaced_and_counted() {
    let folder = folder_with(include_str!("async_rollouts/dynamic.yaml"));
    let directory = finished(LocalRun::start(folder.path(), "runs"), folder.path());
    let dropped: f64 = steps(&directory).iter().filter_map(|step| step.get(DROPPED_GROUPS)).sum();
    assert!(dropped > 0.0);
    let used: u32 = query(&directory, "SELECT max(next_position) FROM batches").parse().unwrap();
    assert_eq!(u64::from(used), u64::from(STEPS) * BATCH + dropped as u64);
}
