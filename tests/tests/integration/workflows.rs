//! Workflows of several turns: samples in the journal, and exact recovery of a run whose
//! coordinator and engines are killed while a turn is sampled.

use std::path::PathBuf;

use rljob_crds::names::EXPORT_DIR;

use crate::exact_recovery::{RunUnderFaults, SAMPLES, Victim, practise};
use crate::journal::query;
use crate::local_run::{evaluations, weights};

/// The question is repeated after a wrong sum.
const TURNS: [&str; 3] = [
    "practise:spec.rollout.workflow.multiTurn.feedback=\" {{question}}\"",
    "practise:spec.rollout.workflow.multiTurn.discount=0.5",
    "practise:spec.rollout.workflow.multiTurn.maxTokens=16",
];

/// Directory of the run, which has succeeded.
fn finished(run: RunUnderFaults) -> PathBuf {
    let directory = run.local.runs.join("default/practise");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");
    directory
}

/// Number of samples that meet a condition.
fn count(directory: &std::path::Path, condition: &str) -> u64 {
    let sql = format!("SELECT COUNT(*) FROM samples WHERE {condition}");
    query(directory, &sql).parse().unwrap()
}

/// Every sample has its reward from its last turn, and the feedback repeats the prompt.
fn check_samples(directory: &std::path::Path) {
    let turns = "json_array_length(turn_rewards)";
    assert!(count(directory, &format!("{turns} = 2")) > 0);
    assert_eq!(count(directory, &format!("{turns} = 1 AND reward != 1")), 0);
    assert_eq!(count(directory, &format!("{turns} = 2 AND reward NOT IN (0, 0.5)")), 0);
    let feedback = "json_extract(segments, '$[2].text')";
    let repeated = format!("{feedback} = ' ' || json_extract(segments, '$[0].text')");
    assert_eq!(count(directory, &format!("{turns} = 2 AND NOT {repeated}")), 0);
    let trained = "json_extract(segments, '$[2].trained')";
    assert_eq!(count(directory, &format!("{turns} = 2 AND {trained}")), 0);
    for evaluation in evaluations(directory) {
        let first = evaluation.scalars.get("sampledFirstTurn").unwrap();
        assert!(evaluation.sampled.unwrap() >= first, "{evaluation:?}");
    }
}

#[test]
fn kills_in_a_turn_do_not_change_the_result() {
    let expected = finished(practise("turns", &TURNS, &[]));
    check_samples(&expected);
    let mut run = practise("turns-killed", &TURNS, &[]);
    run.kill_coordinator_in_a_turn();
    run.wait_for_steps(3);
    run.kill_after_log_lines(Victim::Engine, 20);
    run.kill_coordinator_in_a_turn();
    let found = finished(run);
    assert!(
        query(&found, SAMPLES) == query(&expected, SAMPLES),
        "the samples differ from those of the run without kills"
    );
    assert!(
        weights(&found.join(EXPORT_DIR)) == weights(&expected.join(EXPORT_DIR)),
        "the weights differ from those of the run without kills"
    );
}
