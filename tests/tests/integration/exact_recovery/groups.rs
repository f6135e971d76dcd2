//! Groups of `trainer.groups`: their results are those of a model in the trainer, and kills of the
//! group, of the trainer and of the coordinator do not change them.

use std::fs;

use rljob_crds::names::METRICS_FILE;
use serde_json::Value;

use super::kills::GROUP;
use super::{Victim, practise, untimed_lines, with_and_without_kills};
use crate::journal::query;

const ALGORITHM: &str = "practise:spec.algorithm={grpo: {groupSize: 4, klCoefficient: 0.05}}";

fn group() -> String {
    format!(
        "practise:spec.trainer.groups=[{{name: {GROUP}, roles: [Reference], processesPerReplica: \
         2}}]"
    )
}

/// Metrics of the steps of a run without kills.
fn steps(runs: &str, sets: &[&str]) -> Vec<Value> {
    let run = practise(runs, sets, &[]);
    let directory = run.local.runs.join("default/practise");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");
    untimed_lines(&directory.join(METRICS_FILE))
}

#[test]
#[ignore = "long: make thorough"]
fn kills_of_a_group_of_the_trainer_and_of_the_coordinator_do_not_change_the_result() {
    let (group, sets) = (group(), [ALGORITHM, "practise:spec.training.minibatches=2"]);
    let kills = [
        (1, Victim::GroupLearner(1)),
        (3, Victim::Coordinator),
        (5, Victim::Learner(1)),
        (7, Victim::GroupSupervisor),
        (9, Victim::GroupLearner(0)),
    ];
    let (directories, with_group) =
        with_and_without_kills("group", &[sets[0], sets[1], group.as_str()], &kills);
    let alone = steps("group-alone", &sets);
    assert_eq!(with_group.len(), alone.len());
    for name in ["referenceKl", "loss", "gradientNorm"] {
        let [found, expected] = [&with_group, &alone].map(|steps| steps[1][name].as_f64().unwrap());
        let error = (found - expected).abs();
        assert!(error < 1e-5 + 1e-4 * expected.abs(), "{name}: {found} and {expected}");
    }
    let [_, killed] = &directories;
    let attempts = |path: &str| {
        let sql = format!(
            "SELECT max(json_extract(detail, '$.{path}')) FROM events WHERE kind = 'RunChanged'"
        );
        query(killed, &sql).parse::<u32>().unwrap()
    };
    assert!(attempts(&format!("groups.{GROUP}.attempt")) >= 3, "each kill restarts the group");
    assert!(attempts("attempt") <= 1, "the trainer restarts for its own learner only");
    let seconds = fs::read_to_string(killed.join(METRICS_FILE)).unwrap();
    assert!(seconds.lines().all(|line| line.contains("\"referenceSeconds\"")), "{seconds}");
}

#[test]
fn a_group_infers_batches_that_are_sampled_ahead() {
    let (group, ahead) = (group(), "practise:spec.rollout.maxStaleness=2");
    let steps = steps("group-ahead", &[ALGORITHM, ahead, group.as_str()]);
    assert!(steps.iter().all(|step| step["referenceKl"].as_f64().is_some()), "{steps:?}");
}
