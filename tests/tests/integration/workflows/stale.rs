//! Environment with asynchronous rollouts and dynamic sampling: weight syncs interrupt turns,
//! groups without spread are dropped, and each prompt is trained on once, also after kills in a
//! turn.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use axum::routing::post;
use axum::{Json, Router};
use rljob_crds::names::METRICS_FILE;
use rljob_protocol::metrics::StepMetrics;
use rljob_protocol::version::Version;
use rljob_tests::http::Http;
use serde::Deserialize;
use serde_json::{Value, json};

use super::finished;
use crate::exact_recovery::{Victim, practise};
use crate::journal::query;

/// Steps, prompts per step, samples per prompt, `maxStaleness`.
const STEPS: u32 = 12;
const BATCH: u32 = 8;
const GROUP: u32 = 4;
const STALENESS: u32 = 1;
/// Steps that the journal keeps: those after the first checkpoint.
const FIRST_CHECKPOINT: u32 = 2;
const SETTINGS: [&str; 10] = [
    "rollout.batchSize=8",
    "algorithm.grpo.groupSize=4",
    // Long turns, which syncs interrupt.
    "rollout.maxNewTokens=24",
    "rollout.minNewTokens=24",
    "rollout.maxStaleness=1",
    "rollout.dynamicSampling={maxAttempts: 8}",
    "training.deterministic=false",
    "dataset.evaluation.limit=4",
    "weightSync.method=Disk",
    "checkpoint.everySteps=2",
];

/// A server that asks a second question in each episode.
fn environment() -> Http {
    let reset = post(async || Json(json!({})));
    Http::start(Router::new().route("/reset", reset).route("/step", post(step))).unwrap()
}

/// Only the second turn has a reward: whether the completion has an even number of ones. The same
/// request has the same response.
async fn step(Json(request): Json<Value>) -> Json<Value> {
    if request["turn"] == 1 {
        let question = json!({"role": "user", "content": " 12+34="});
        return Json(json!({"done": false, "messages": [question]}));
    }
    let ones = request["completion"].as_str().unwrap_or_default().matches('1').count();
    Json(json!({"reward": f64::from(u8::from(ones % 2 == 0)), "done": true}))
}

#[derive(Deserialize)]
struct Run {
    version: String,
}

#[derive(Deserialize)]
struct Segment {
    versions: Vec<Run>,
}

/// Steps of the weights that sampled the tokens of a segment.
fn weights(segment: &Segment) -> BTreeSet<u32> {
    let step = |run: &Run| run.version.parse::<Version>().unwrap().step;
    segment.versions.iter().map(step).collect()
}

/// Every token of a trained sample is within the staleness, and syncs interrupted turns.
fn check_versions(directory: &Path) {
    let rows = query(directory, "SELECT step, segments FROM samples WHERE step IS NOT NULL");
    let mut interrupted = 0;
    for row in rows.lines() {
        let (step, segments) = row.split_once('|').unwrap();
        let before = step.parse::<u32>().unwrap() - 1;
        let segments: Vec<Segment> = serde_json::from_str(segments).unwrap();
        let turns: Vec<_> = segments.iter().map(weights).filter(|own| !own.is_empty()).collect();
        assert_eq!(turns.len(), 2, "{row}");
        for weights in turns.iter().flatten() {
            assert!((before - STALENESS.min(before)..=before).contains(weights), "{row}");
        }
        interrupted += usize::from(turns.iter().any(|weights| weights.len() > 1));
    }
    assert!(interrupted > 0, "of {} samples", rows.lines().count());
}

/// Each step has its batch once, of groups with spread; further ones were dropped.
fn check_batches(directory: &Path) {
    let lines = fs::read_to_string(directory.join(METRICS_FILE)).unwrap();
    let metrics: Vec<StepMetrics> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<u32> = metrics.iter().map(|metrics| metrics.step).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>());
    let batches = "SELECT step, samples FROM batches ORDER BY step";
    let expected: Vec<String> =
        (1..=STEPS).map(|step| format!("{step}|{}", BATCH * GROUP)).collect();
    assert_eq!(query(directory, batches), expected.join("\n"));
    let used = "SELECT max(next_position), sum(dropped_groups) > 0, \
        max(next_position) - sum(dropped_groups) FROM batches";
    let used = query(directory, used);
    assert!(used.ends_with(&format!("|1|{}", STEPS * BATCH)), "{used}");
    let groups = "SELECT step, count(DISTINCT position), count(*) FROM samples WHERE step IS NOT \
        NULL GROUP BY step ORDER BY step";
    let expected: Vec<String> = (FIRST_CHECKPOINT + 1..=STEPS)
        .map(|step| format!("{step}|{BATCH}|{}", BATCH * GROUP))
        .collect();
    assert_eq!(query(directory, groups), expected.join("\n"));
    let without_spread = "SELECT count(*) FROM (SELECT position FROM samples WHERE step IS NOT \
        NULL GROUP BY position HAVING min(reward) = max(reward))";
    assert_eq!(query(directory, without_spread), "0");
    let rejected = "SELECT count(*) FROM events WHERE kind = 'SampleRejected'";
    assert_eq!(query(directory, rejected), "0");
}

#[test]
fn syncs_interrupt_turns_and_every_prompt_is_trained_on_once_after_kills_in_a_turn() {
    let environment = environment();
    let url = environment.endpoint();
    let workflow = format!("rollout.workflow={{environment: {{url: \"{url}\", maxTurns: 2}}}}");
    let sets: Vec<String> = SETTINGS
        .iter()
        .chain([&workflow.as_str()])
        .map(|set| format!("practise:spec.{set}"))
        .collect();
    let mut run =
        practise("stale-turns", &sets.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    run.wait_for_steps(2);
    run.kill_coordinator_in_a_turn();
    run.wait_for_steps(5);
    run.kill_after_log_lines(Victim::Engine, 20);
    run.wait_for_steps(7);
    run.kill_coordinator_in_a_turn();
    let directory = finished(run);
    check_batches(&directory);
    check_versions(&directory);
}
