//! Objectives with further models and state: kills do not change weights, optimizer states or
//! records.

use std::fs;
use std::path::{Path, PathBuf};

use rljob_crds::names::{EVALUATIONS_FILE, METRICS_FILE};

use super::{RunUnderFaults, Victim, practise, untimed_lines};
use crate::local_run::weights;

/// Last step of `practise`, at which it writes a checkpoint.
const LAST: &str = "step-12.";

#[test]
fn kills_do_not_change_policy_or_critic_of_ppo() {
    assert_kills_change_nothing("ppo", "criticOptimizer: {learningRate: 0.001}");
}

#[test]
#[ignore = "long: make thorough"]
fn kills_do_not_change_policy_or_value_head_of_ppo() {
    assert_kills_change_nothing("value-head", "valueHead: {learningRate: 0.01}");
}

/// Compares a run of PPO with these settings of its critic with one whose processes are killed.
fn assert_kills_change_nothing(name: &str, critic: &str) {
    let ppo = format!(
        "practise:spec.algorithm={{ppo: {{epochs: 2, criticWarmupSteps: 2, klCoefficient: 0.05, \
         {critic}}}}}"
    );
    let sets = [ppo.as_str(), "practise:spec.training.minibatches=2"];
    let (expected, output) = end(practise(name, &sets, &[]));
    let mut run = practise(&format!("{name}-killed"), &sets, &[]);
    run.wait_for_steps(1);
    run.kill_learner_at_log_line(1, "backward"); // the critic alone is trained
    run.wait_for_steps(4);
    run.kill_after_log_lines(Victim::Coordinator, 5);
    run.wait_for_steps(7);
    run.kill_learner_during_write();
    let (directory, killed_output) = end(run);
    for file in [METRICS_FILE, EVALUATIONS_FILE] {
        let [lines, expected] = [&directory, &expected].map(|run| untimed_lines(&run.join(file)));
        assert_eq!(lines, expected, "{file}\n{killed_output}");
    }
    let [export, expected_export] = [&directory, &expected].map(|run| weights(&run.join("export")));
    assert!(export == expected_export, "the exports differ\n{output}\n{killed_output}");
    for rank in 0..2 {
        let [shard, expected] = [&directory, &expected].map(|run| last_shard(run, rank));
        assert!(shard == expected, "rank {rank}: the last checkpoints differ\n{killed_output}");
    }
}

/// Run directory and output of a run that succeeds.
fn end(run: RunUnderFaults) -> (PathBuf, String) {
    let directory = run.local.runs.join("default/practise");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");
    (directory, output)
}

/// Weights and optimizer states of all models of a rank after the last step.
fn last_shard(run: &Path, rank: u32) -> Vec<u8> {
    let folders = fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap());
    let last = folders.filter(|entry| entry.file_name().to_str().unwrap().starts_with(LAST));
    let folder = last.last().expect("a checkpoint of the last step").path();
    fs::read(folder.join(format!("rank-{rank}-of-2.safetensors"))).unwrap()
}
