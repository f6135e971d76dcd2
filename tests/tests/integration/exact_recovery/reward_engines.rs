//! Reward model on engines of the job: kills of its engines change no score and restart no learner.

use std::fs;

use rljob_crds::names::EXPORT_DIR;

use super::{Victim, with_and_without_kills};
use crate::local_run::{LocalRun, folder_with};

/// The first job trains a reward model.
const JOBS: &str = include_str!("../local_run/model_reward.yaml");

#[test]
#[ignore = "long: make thorough"]
fn kills_of_engines_of_the_reward_model_do_not_change_the_result() {
    let folder = folder_with(JOBS.split("---\n").next().unwrap());
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
    let model = folder.path().join("runs/default/judge").join(EXPORT_DIR);
    let rewards = format!(
        "practise:spec.rewards=[{{name: scored, model: {{path: {}, engines: {{replicas: 2}}, \
         text: \"{{{{prompt}}}}{{{{completion}}}}<eos>\"}}}}, \
         {{name: correct, weight: 0, exactMatch: {{}}}}]",
        model.display()
    );
    // First one engine, then both: the run waits.
    let kills = [
        (2, Victim::RewardEngine(0)),
        (5, Victim::RewardEngine(0)),
        (5, Victim::RewardEngine(1)),
        (8, Victim::RewardEngine(1)),
    ];
    let ([_, killed], steps) = with_and_without_kills("reward-engines", &[&rewards], &kills);
    assert!(steps.iter().all(|step| step["reward/scored"].is_f64()), "{steps:?}");
    let trainer = fs::read_to_string(killed.join("logs/trainer-0.log")).unwrap();
    assert_eq!(trainer.matches("starting learners").count(), 1, "{trainer}");
}
