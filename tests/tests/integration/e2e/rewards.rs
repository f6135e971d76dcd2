//! A reward whose command tries to leave its container, on a real node: the run succeeds, every
//! attempt is refused, and no process of an earlier command remains.

use std::fs;
use std::process::Command;

use rljob_crds::names::METRICS_FILE;
use rljob_tests::Namespace;
use rljob_tests::files::binary;
use rljob_tests::process::{self, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, NODES, Run, cluster};

/// Components of the reward, see reward.sh.
const PARTS: [&str; 7] =
    ["environment", "processes", "tokens", "account", "run", "network", "works"];
/// Processes of the command; each has one orphan.
const PROCESSES: usize = 2;

#[test]
fn a_command_reaches_neither_tokens_nor_the_run_nor_the_network() {
    let _nodes = NODES.read();
    let namespace = Namespace::create(cluster(), "guarded").unwrap();
    let data = cluster().shared_folder("data-guarded").unwrap();
    fs::write(data.join("reward.sh"), include_str!("reward.sh")).unwrap();
    let run = Run::start(cluster(), &namespace, include_str!("rewards.yaml"), "guarded");
    // Commands have been replaced several times.
    run.wait_for_steps(3);
    wait_until("the end of orphans", LIMIT, || Ok(orphans().len() <= PROCESSES)).unwrap();
    wait_until("the end of zombies", LIMIT, || Ok(zombies().is_empty())).unwrap();
    run.wait_for_condition("Succeeded");
    let text = fs::read_to_string(run.directory.join(METRICS_FILE)).unwrap();
    for line in text.lines() {
        let step: Value = serde_json::from_str(line).unwrap();
        for part in PARTS {
            assert_eq!(step[format!("reward/guarded/{part}")], 1.0, "{part}: {step}");
        }
    }
    assert_eq!(run.status()["restarts"], 0);
    let line = json!({"pod": "guarded-coordinator-0", "message": "reward.sh starts"});
    let lines = log_of_rewards(&namespace);
    assert!(lines.contains(&line), "{lines:?}");
}

/// The log of the container `rewards` as JSON: its lines are text of the commands.
fn log_of_rewards(namespace: &Namespace) -> Vec<Value> {
    let mut command = Command::new(binary("rljob").unwrap());
    command.args(["logs", "--cluster", "--namespace", &namespace.name, "--kubeconfig"]);
    command.arg(cluster().kubeconfig()).args(["guarded", "coordinator", "--container=rewards"]);
    let text = process::run(command.arg("--output=json")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Command lines of the orphans that reward.sh leaves.
fn orphans() -> Vec<String> {
    let lines = cluster().pod_processes("").into_iter().map(|process| process.command_line);
    lines.filter(|line| line.contains("sleep 86397")).collect()
}

/// Children of the reward runner that have exited and that it has not reaped.
fn zombies() -> Vec<String> {
    let processes = cluster().pod_processes("");
    let mut lines = processes.iter();
    let runner = lines.find(|process| process.command_line.contains("rljob-reward-runner serve"));
    let parent = format!(" Z {} ", runner.unwrap().pid.as_raw_nonzero());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let states = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    states.filter(|state| state.contains(&parent)).collect()
}
