//! Batches of the prompt groups that finish first: a slow group holds no batch before its last
//! step, and is trained on once, also after a kill of the coordinator and after a rollback.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use rljob_crds::names::METRICS_FILE;
use rljob_protocol::checkpoint::POSITION_FILE;
use rljob_protocol::metrics::StepMetrics;
use rljob_tests::files::binary;
use rljob_tests::http::Http;
use rljob_tests::process::{self, wait_until};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{finished, lines};
use crate::exact_recovery::RunUnderFaults;
use crate::journal::query;
use crate::local_run::{LIMIT, LocalRun, folder_with};

/// Steps, prompts per step, samples per prompt, `maxStaleness`.
const STEPS: u32 = 8;
const BATCH: u32 = 8;
const GROUP: u32 = 4;
const STALENESS: u32 = 2;
/// Loader position of the slow group, which is for step 4, and its prompt.
const POSITION: u32 = 24;
const SLOW: &str = "84+66=";

/// Server of rewards that answers for one prompt only when it is released.
struct Rewards {
    http: Http,
    held: Arc<AtomicUsize>,
    released: watch::Sender<bool>,
}

#[derive(Clone)]
struct Shared {
    /// Number of requests for the slow prompt so far.
    held: Arc<AtomicUsize>,
    released: watch::Receiver<bool>,
}

impl Rewards {
    fn start() -> Self {
        let (released, receiver) = watch::channel(false);
        let held = Arc::new(AtomicUsize::new(0));
        let shared = Shared { held: Arc::clone(&held), released: receiver };
        let router = Router::new().route("/", post(score)).with_state(shared);
        Self { http: Http::start(router).unwrap(), held, released }
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }
}

async fn score(State(mut shared): State<Shared>, Json(request): Json<Value>) -> Json<Value> {
    if request["prompt"] == SLOW {
        shared.held.fetch_add(1, Ordering::SeqCst);
        // The sender exists as long as the server.
        let _ = shared.released.wait_for(|released| *released).await;
    }
    let completion = request["completion"].as_str().unwrap_or_default();
    Json(json!({"reward": f64::from(completion.len() as u32 % 2)}))
}

fn steps_with_slow_group(directory: &Path) -> String {
    query(directory, &format!("SELECT DISTINCT step FROM samples WHERE position = {POSITION}"))
}

#[test]
fn a_slow_group_holds_no_batch_before_its_last_step_and_is_trained_on_once_after_a_kill() {
    let rewards = Rewards::start();
    let job = include_str!("finished.yaml").replace("SERVER", &rewards.http.endpoint());
    let folder = folder_with(&job);
    let mut run = RunUnderFaults::new(LocalRun::start(folder.path(), "runs"), "ahead");
    let last = POSITION / BATCH + 1 + STALENESS;
    wait_until("the slow group to be sampled", LIMIT, || Ok(rewards.held() > 0)).unwrap();
    run.wait_for_steps(last as usize - 1);
    let copy = tempfile::tempdir().unwrap();
    run.copy_journal(copy.path());
    let passed_over = format!("SELECT step FROM passed_over WHERE position = {POSITION}");
    assert_eq!(query(copy.path(), &passed_over), "4\n5");
    let before = rewards.held();
    run.local.kill("rljob-coordinator");
    wait_until("the slow group to be sampled again", LIMIT, || Ok(rewards.held() > before))
        .unwrap();
    rewards.released.send_replace(true);
    let directory = finished(run.local, folder.path());

    assert_eq!(steps_with_slow_group(&directory), last.to_string());
    assert_every_group_is_in_one_batch(&directory);
    let metrics: Vec<StepMetrics> = lines(&directory.join(METRICS_FILE));
    assert_eq!(
        metrics.iter().map(|metrics| metrics.step).collect::<Vec<_>>(),
        (1..=STEPS).collect::<Vec<_>>()
    );
    let oldest = metrics.iter().filter_map(|metrics| metrics.staleness.keys().max()).max();
    assert!(oldest.is_some_and(|steps| (STALENESS..=2 * STALENESS).contains(steps)), "{oldest:?}");

    let position = directory.join("checkpoints/step-4.attempt-0").join(POSITION_FILE);
    let position: Value = serde_json::from_slice(&fs::read(position).unwrap()).unwrap();
    assert!(position["passedOver"].as_array().unwrap().contains(&json!(POSITION)), "{position}");
    let restore = ["checkpoints", "restore", "--step", "4", "--discard"];
    process::run(Command::new(binary("rljob").unwrap()).args(restore).arg(&directory)).unwrap();
    assert_eq!(steps_with_slow_group(&directory), "");
    let directory = finished(LocalRun::start(folder.path(), "runs"), folder.path());
    assert!(["5", "6"].contains(&steps_with_slow_group(&directory).as_str()));
    assert_every_group_is_in_one_batch(&directory);
}

/// Samples up to the first checkpoint, at step 4, were pruned.
fn assert_every_group_is_in_one_batch(directory: &Path) {
    let batches = "SELECT step, samples FROM batches ORDER BY step";
    let expected: Vec<String> =
        (1..=STEPS).map(|step| format!("{step}|{}", BATCH * GROUP)).collect();
    assert_eq!(query(directory, batches), expected.join("\n"));
    let groups = "SELECT step, count(DISTINCT position), count(*) FROM samples WHERE step IS NOT \
        NULL GROUP BY step ORDER BY step";
    let expected: Vec<String> =
        (5..=STEPS).map(|step| format!("{step}|{BATCH}|{}", BATCH * GROUP)).collect();
    assert_eq!(query(directory, groups), expected.join("\n"));
    let end = "SELECT max(next_position) FROM batches";
    assert_eq!(query(directory, end), (STEPS * BATCH).to_string());
    let left = format!("SELECT count(*) FROM passed_over WHERE step = {STEPS}");
    assert_eq!(query(directory, &left), "0");
}
