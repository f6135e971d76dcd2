//! Custom engines (`--engine-command`): all of their processes exit with `rljob run`.

use std::fs;

use rljob_tests::process::wait_until;
use rustix::process::{Signal, kill_process};

use super::{LIMIT, LocalRun};
use crate::exact_recovery::practise;

/// An engine that never responds and ignores the run's flags. Its children are in its process
/// group, in other sessions, and orphaned. Each sleeps for a duration that identifies the test.
fn script(seconds: &str) -> String {
    format!(
        "sleep {seconds} & setsid sleep {seconds} & setsid sh -c 'sleep {seconds} & setsid sleep \
            {seconds} & exit' & sleep {seconds}"
    )
}

/// Running `sleep` processes with this argument.
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
    let sets = ["practise:spec.inference.sglang={}", "practise:spec.inference.replicas=1"];
    practise("users-engine", &sets, &["--engine-command", &command]).local
}

#[test]
fn all_processes_of_a_custom_engine_exit_with_the_run() {
    let seconds = format!("86{}", std::process::id());
    let local = start(&seconds);
    wait_for_sleepers(&seconds, 5);
    kill_process(local.find("sh", &format!("-c sleep {seconds}")).unwrap(), Signal::KILL).unwrap();
    wait_until("another engine", LIMIT, || Ok(local.output().contains("inference-0 exited with")))
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
