//! PPO: the critic and the KL coefficient of a killed run are those of an undisturbed one.

use std::path::Path;

use rljob_crds::names::{EXPORT_DIR, METRICS_FILE};
use rljob_protocol::metrics::{KL_COEFFICIENT, StepMetrics, VALUE_MEAN};

use super::{LocalRun, folder_with, weights};

const JOBS: &str = include_str!("critic.yaml");

/// Exported weights, and the KL coefficient and mean value of each step, in bits.
fn results(run: &Path) -> (Vec<u8>, Vec<[u64; 2]>) {
    let lines = std::fs::read_to_string(run.join(METRICS_FILE)).unwrap();
    let steps = lines.lines().map(|line| serde_json::from_str::<StepMetrics>(line).unwrap());
    let bits = |step: &StepMetrics, name: &str| step.scalars.get(name).unwrap().to_bits();
    let facts = steps.map(|step| [bits(&step, KL_COEFFICIENT), bits(&step, VALUE_MEAN)]);
    (weights(&run.join(EXPORT_DIR)), facts.collect())
}

#[test]
fn killed_learners_do_not_change_the_weights_and_the_kl_coefficients_of_ppo() {
    let folder = folder_with(JOBS);
    let (code, output) = LocalRun::start(folder.path(), "baseline").end();
    assert_eq!(code, Some(0), "{output}");
    let killed = LocalRun::start(folder.path(), "killed");
    for step in [2, 6] {
        killed.wait_for_steps("estimate", step);
        killed.kill("rljob-learner");
    }
    let (code, output) = killed.end();
    assert_eq!(code, Some(0), "{output}");
    let run = |runs: &str| results(&folder.path().join(runs).join("default/estimate"));
    let (found, expected) = (run("killed"), run("baseline"));
    assert_eq!(found.1, expected.1, "{output}");
    assert!(found.0 == expected.0, "the weights differ from the baseline\n{output}");
    let mut coefficients: Vec<u64> =
        expected.1.iter().map(|[coefficient, _]| *coefficient).collect();
    coefficients.dedup();
    assert_eq!(coefficients.len(), 9, "all differ but those of the warm-up and after it");
}
