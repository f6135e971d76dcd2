//! A group of the trainer, an engine that only evaluates and an engine of a reward model, on real
//! nodes: lost pods of them change neither weights nor metrics nor evaluations, and the trainer
//! continues.

use rljob_crds::names::{EVALUATIONS_FILE, METRICS_FILE};
use rljob_tests::Namespace;
use serde_json::{Value, json};

use super::{NODES, Run, cluster};
use crate::exact_recovery::{assert_same_result, untimed_lines};

/// `dataset.evaluation.everySteps` and `training.steps` in groups.yaml.
const EVALUATION_STEPS: u64 = 3;
const STEPS: u64 = 12;

/// Runs the job of a namespace to success, with the reward model of another.
fn succeed<'a>(
    namespace: &'a Namespace,
    judge: &Namespace,
    faults: impl FnOnce(&Run<'_>),
) -> Run<'a> {
    let text = include_str!("groups.yaml").replace("JUDGE", &judge.name);
    let run = Run::start(cluster(), namespace, &text, "grouped");
    run.wait_for_steps(1);
    for condition in ["TrainerReady", "EvaluationReady", "RewardReady"] {
        run.wait_for_condition(condition);
    }
    faults(&run);
    run.wait_for_condition("Succeeded");
    run
}

fn lose_pods(run: &Run<'_>) {
    run.wait_for_steps(2);
    run.lose_pod("trainer-frozen");
    run.wait_for_progress();
    run.lose_pod("evaluation");
    run.lose_pod("reward");
}

#[test]
fn lost_pods_of_a_group_and_of_engines_beside_rollouts_do_not_change_the_result() {
    let _nodes = NODES.read();
    let namespaces = ["alone", "faulty"].map(|name| Namespace::create(cluster(), name).unwrap());
    let [alone, faulty] = &namespaces;
    let judge = Run::start(cluster(), alone, include_str!("reward-model.yaml"), "judge");
    judge.wait_for_condition("Succeeded");
    let expected = succeed(alone, alone, |_| {});
    let run = succeed(faulty, alone, lose_pods);

    let lines = |run: &Run<'_>, file| untimed_lines(&run.directory.join(file));
    let evaluations = lines(&run, EVALUATIONS_FILE);
    let steps: Vec<_> = evaluations.iter().filter_map(|line| line["step"].as_u64()).collect();
    assert_eq!(steps, (0..=STEPS).step_by(EVALUATION_STEPS as usize).collect::<Vec<_>>());
    assert_eq!(evaluations, lines(&expected, EVALUATIONS_FILE));
    let metrics = lines(&run, METRICS_FILE);
    assert_eq!(metrics, lines(&expected, METRICS_FILE));
    for name in ["referenceKl", "reward/scored"] {
        assert!(metrics.iter().all(|step| step[name].is_number()), "{name}: {metrics:?}");
    }
    assert_same_result(&run.directory, &expected.directory);

    let status = run.status();
    let group = &status["trainerGroups"][0];
    assert_eq!(group["name"], "frozen", "{status}");
    assert!(group["attempt"].as_u64() >= Some(1), "the group restarts with its lost pod: {status}");
    let counted = |status: &Value| [&status["restarts"], &status["attempt"]].map(Value::clone);
    assert_eq!(counted(&status), [json!(0), json!(0)], "the trainer continues: {status}");
    assert_eq!(group["restarts"], 0, "a lost pod counts as no restart: {status}");
}
