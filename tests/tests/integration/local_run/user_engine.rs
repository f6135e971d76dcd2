//! A program of the user's, given by `--engine-command`: whatever it starts ends with `rljob run`.

use std::fs;

use rljob_tests::process::wait_until;
use rustix::process::{Signal, kill_process};

use super::{LIMIT, LocalRun};
use crate::exact_recovery::practise;

/// A server that never answers, to which the run's flags are nothing, and whose children are of
/// every kind: in its group, in sessions of their own, and orphans of these. Each sleeps for a time
/// that no other process of this machine sleeps for.
fn script(seconds: &str) -> String {
    format!(
        "sleep {seconds} & setsid sleep {seconds} & setsid sh -c 'sleep {seconds} & setsid sleep {seconds} & exit' & sleep {seconds}"
    )
}

/// Processes with this word on their command line.
fn with_word(word: &str) -> Vec<String> {
    let lines = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.starts_with("sleep\0") && line.contains(word)).collect()
}

fn wait_for_sleepers(seconds: &str, count: usize) {
    wait_until(&format!("{count} processes"), LIMIT, || Ok(with_word(seconds).len() == count))
        .unwrap_or_else(|error| panic!("{error:#}: {:?}", with_word(seconds)));
}

fn start(seconds: &str) -> LocalRun {
    let command = format!("sh -c \"{}\"", script(seconds));
    let sets = ["practise:spec.inference.engine=SGLang", "practise:spec.inference.replicas=1"];
    practise("users-engine", &sets, &["--engine-command", &command]).local
}

#[test]
fn nothing_that_a_users_engine_started_outlives_a_run_that_is_killed_stopped_or_loses_the_engine() {
    let seconds = format!("86{}", std::process::id());
    let local = start(&seconds);
    wait_for_sleepers(&seconds, 5);
    kill_process(local.find("sh", &format!("-c sleep {seconds}")).unwrap(), Signal::KILL).unwrap();
    wait_until("another engine", LIMIT, || Ok(local.output().contains("inference-0 ended with")))
        .unwrap();
    wait_for_sleepers(&seconds, 5);
    local.kill_all();
    wait_for_sleepers(&seconds, 0);

    let local = start(&seconds);
    wait_for_sleepers(&seconds, 5);
    local.signal(Signal::INT);
    wait_until("the first request to stop", LIMIT, || {
        Ok(local.output().contains("Ctrl-C again stops at once"))
    })
    .unwrap();
    local.signal(Signal::INT);
    local.end();
    wait_for_sleepers(&seconds, 0);
}
