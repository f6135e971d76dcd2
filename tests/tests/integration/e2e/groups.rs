//! A group of the trainer, an engine that only evaluates and an engine of a reward model, on real
//! nodes: lost pods of them change neither weights nor metrics nor evaluations, the trainer
//! continues, and alerts fire.

use std::time::Instant;

use rljob_crds::names::{EVALUATIONS_FILE, METRICS_FILE};
use rljob_tests::Namespace;
use rljob_tests::process::wait_until;
use serde_json::{Value, json};

use super::monitors::{Monitored, SHARED_LIMIT};
use super::{LIMIT, NODES, Run, cluster};
use crate::alerts::short_rules;
use crate::exact_recovery::{assert_same_result, untimed_lines};

/// `dataset.evaluation.everySteps` and `training.steps` in groups.yaml.
const EVALUATION_STEPS: u64 = 3;
const STEPS: u64 = 12;
/// Killed processes of the group.
const KILLED: u64 = 2;

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

/// Each fault fires its alert. The group loses a pod and two processes.
fn lose_pods(run: &Run<'_>) {
    let monitored = Monitored::start(cluster(), run, &short_rules(&[]), SHARED_LIMIT);
    run.wait_for_steps(2);
    monitored.a_lost_pod_fires_its_alert("trainer-frozen", "RLJobGroupLost", &json!({}));
    let attempt = || monitored.job()["status"]["trainerGroups"][0]["attempt"].as_u64();
    for killed in 0..=KILLED {
        let restarts = Some(killed + 1);
        wait_until("a restart of the group", LIMIT, || Ok(attempt() >= restarts)).unwrap();
        run.wait_for_condition("TrainerReady");
        if killed < KILLED {
            cluster().kill_oldest("rljob-learner .*--group frozen").unwrap();
        }
    }
    let patch = json!({"group": "frozen"});
    monitored.alert_fires_in_time("RLJobGroupRestartLoop", &patch, Instant::now());
    run.wait_for_progress();
    monitored.a_lost_pod_fires_its_alert("evaluation", "RLJobEvaluationEngineLost", &json!({}));
    monitored.a_lost_pod_fires_its_alert("reward", "RLJobRewardEngineLost", &json!({}));
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
    assert!(group["attempt"].as_u64() > Some(KILLED), "a lost pod restarts the group: {status}");
    let counted = |status: &Value| [&status["restarts"], &status["attempt"]].map(Value::clone);
    assert_eq!(counted(&status), [json!(0), json!(0)], "the trainer continues: {status}");
    assert_eq!(group["restarts"], KILLED, "a lost pod counts as no restart: {status}");
}
