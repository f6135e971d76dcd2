//! Evaluations on separate engines have the results of those on the engines of rollouts, once
//! each, whatever is killed in them; training does not wait for them.

use std::fs;
use std::path::Path;

use rljob_crds::names::{EVALUATION_WEIGHTS_DIR, EVALUATIONS_FILE};
use rljob_tests::process::wait_until;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{RunUnderFaults, assert_same_result, practise, untimed_lines};
use crate::local_run::LIMIT;

/// Evaluations that take longer than steps.
const SLOW: [&str; 3] = [
    "practise:spec.dataset.evaluation.everySteps=2",
    "practise:spec.dataset.evaluation.limit=64",
    "practise:spec.dataset.evaluation.samples=24",
];

/// Steps of the evaluations that wait, the one in progress first.
fn pending(run: &RunUnderFaults, directory: &Path) -> Vec<u64> {
    let log = fs::read_to_string(run.log("coordinator")).unwrap_or_default();
    let written = log.lines().filter(|line| line.contains("kind=Evaluated"));
    let step = |line: &str| line.split_once("version=step-")?.1.split('.').next()?.parse().ok();
    let recorded = recorded(directory);
    written.filter_map(step).filter(|step| !recorded.contains(step)).collect()
}

/// Steps of recorded evaluations, in order.
fn recorded(directory: &Path) -> Vec<u64> {
    let text = fs::read_to_string(directory.join(EVALUATIONS_FILE)).unwrap_or_default();
    let line = |line: &str| serde_json::from_str::<Value>(line).ok()?["step"].as_u64();
    text.lines().filter_map(line).collect()
}

/// What a log line about weights of this step has.
fn version(step: u64) -> String {
    format!("step-{step}.attempt-")
}

/// Kills a process, by the name of its log, while an evaluation is sampled.
fn kill_in_an_evaluation(run: &RunUnderFaults, directory: &Path, process: &str) {
    loop {
        let mut step = None;
        wait_until("an evaluation in progress", LIMIT, || {
            let log = fs::read_to_string(run.log("coordinator")).unwrap_or_default();
            step = pending(run, directory).first().copied();
            let updated = log.lines().rfind(|line| {
                line.contains("updated an engine's weights") && line.contains("evaluation-0")
            });
            let holds = |step: &u64| updated.is_some_and(|line| line.contains(&version(*step)));
            Ok(step.as_ref().is_some_and(holds))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", run.local.output()));
        let victim = run.local.find_by_log(process).expect("the process runs");
        kill_process(victim, Signal::KILL).unwrap();
        let is_interrupted = step.is_some_and(|step| !recorded(directory).contains(&step));
        let replaced = || Ok(run.local.find_by_log(process).is_some_and(|found| found != victim));
        wait_until("its successor", LIMIT, replaced).unwrap();
        if is_interrupted {
            return;
        }
    }
}

#[test]
fn evaluations_on_other_engines_have_the_same_results_once_and_training_does_not_wait() {
    let run = practise("evaluated-by-rollouts", &SLOW, &[]);
    let expected = run.local.runs.join("default/practise");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");

    let sets = [&SLOW[..], &["practise:spec.evaluation.engines.replicas=1"]].concat();
    let mut run = practise("evaluated-apart", &sets, &[]);
    let directory = run.local.runs.join("default/practise");
    wait_until("training ahead of evaluations", LIMIT, || Ok(pending(&run, &directory).len() >= 2))
        .unwrap_or_else(|error| panic!("{error:#}\n{}", run.local.output()));
    kill_in_an_evaluation(&run, &directory, "evaluation-0");
    run.kill_learner_at_log_line(0, "backward");
    kill_in_an_evaluation(&run, &directory, "coordinator");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");

    assert_eq!(recorded(&directory), [0, 2, 4, 6, 8, 10, 12], "{output}");
    let lines = |directory: &Path| untimed_lines(&directory.join(EVALUATIONS_FILE));
    assert_eq!(lines(&directory), lines(&expected));
    assert_same_result(&directory, &expected);
    let folders = fs::read_dir(directory.join(EVALUATION_WEIGHTS_DIR)).unwrap();
    assert_eq!(folders.count(), 0, "weights that no evaluation needs are removed");
}
