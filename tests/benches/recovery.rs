//! From a failure to resumed training, in `rljob run` with a job of the quick start's size: a learner, the engine and the coordinator are killed in turn, and the next step
//! is waited for.
//!
//! ```text
//!  kill ── detect ──▶ coordinator: Stopping ── restart ──▶ "starting learners" ── load ──▶ "the learner is ready" ── replay ──▶ next step reported
//! ```
//! A checkpoint is written at every step, so that the replay is one step at most: how far apart checkpoints are is the user's choice.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot go on ends")]
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use rljob_tests::bench::{Aim, median, row};
use rljob_tests::files::workspace;
use rljob_tests::process::{run, wait_until};

#[expect(dead_code, reason = "the tests use all of it")]
#[path = "../tests/integration/local_run/process.rs"]
mod process;

use process::LocalRun;

const JOBS: &str = include_str!("../tests/integration/local_run/jobs.yaml");
const SETS: [&str; 4] = [
    "practise:spec.training.steps=1000",
    "practise:spec.inference.replicas=1",
    "practise:spec.checkpoint.everySteps=1",
    "practise:spec.failurePolicy.maxRestarts=100",
];
const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);

fn main() {
    let folder = tempfile::tempdir().unwrap();
    run(Command::new("python3").arg(workspace().join("manifests/samples/quickstart/make_data.py")).arg(folder.path())).unwrap();
    fs::write(folder.path().join("jobs.yaml"), JOBS).unwrap();
    let sets: Vec<&str> = SETS.iter().flat_map(|set| ["--set", *set]).collect();
    let local = LocalRun::start_with(folder.path(), "runs", &sets);
    local.wait_for_steps("practise", 3);
    let directory = local.runs.join("default/practise");
    for (victim, aim) in [("learner", 3.0), ("engine", 10.0), ("coordinator", 5.0)] {
        let rounds: Vec<Vec<f64>> = (0..ROUNDS).map(|_| struck(&local, &directory, victim)).collect();
        let phase = |index: usize| median(rounds.iter().map(|round| round[index]).collect());
        let parts = if victim == "learner" {
            format!("detect {:.2}, restart {:.2}, load {:.2}, replay and next step {:.2} s", phase(1), phase(2), phase(3), phase(4))
        } else {
            format!("started again after {:.2} s", phase(1))
        };
        let figures = format!("{:.2} s from SIGKILL to the next step, median of {ROUNDS} ({parts})", phase(0));
        row(&format!("recovery-{victim}"), &figures, phase(0), Aim::AtMost(aim));
    }
    local.kill_all();
}

/// Seconds from a kill to the next step that needed whoever was killed, and its parts.
fn struck(local: &LocalRun, directory: &Path, victim: &str) -> Vec<f64> {
    let program = format!("rljob-{victim}");
    let before = local.find(&program, "").unwrap();
    let killed = Timestamp::now();
    local.kill(&program);
    wait_until("its successor", LIMIT, || Ok(local.find(&program, "").is_some_and(|found| found != before))).unwrap();
    let started = seconds(killed, Timestamp::now());
    // A step that was under way may end without it.
    let steps = || fs::read_to_string(directory.join("metrics.jsonl")).unwrap().lines().count();
    let under_way = usize::from(victim != "learner");
    let wanted = steps() + 1 + under_way;
    wait_until("the next step", LIMIT, || Ok(steps() >= wanted)).unwrap();
    let all = seconds(killed, Timestamp::now());
    if victim != "learner" {
        return vec![all, started];
    }
    let log = |name: &str| fs::read_to_string(directory.join(format!("logs/{name}.log"))).unwrap();
    let (coordinator, trainer) = (log("coordinator"), log("trainer-0"));
    let at = |log: &str, words: &str| log.lines().filter(|line| line.contains(words)).filter_map(time).find(|time| *time > killed).unwrap();
    let marks = [killed, at(&coordinator, "stage=\"Stopping\""), at(&trainer, "starting learners"), at(&trainer, "the learner is ready")];
    let mut parts = vec![all];
    parts.extend(marks.windows(2).map(|pair| seconds(pair[0], pair[1])));
    parts.push(all - seconds(killed, marks[3]));
    println!("{victim}: {parts:.2?}");
    parts
}

/// When a line was logged; a learner's has its rank before it.
fn time(line: &str) -> Option<Timestamp> {
    line.split_whitespace().find_map(|word| word.parse().ok())
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
