//! Golden tests: the whole status in each state.

use super::*;
use crate::decide::test_support::{at, facts, outcome};
use crate::decide::{Epoch, Obstacle, Queue, Roles, Silence, decide};
use crate::validate::test_support::validated;
use rljob_crds::model::JobModelSource;
use rljob_crds::names::REASON_INVALID_SPEC;
use rljob_protocol::status::{
    CoordinatorStatus, DownloadProgress, EngineCondition, EngineState, LearnerFailure, Phase,
    StepMetrics,
};
use rljob_protocol::version::Version;

mod parts;

fn status(old: &RLJobStatus, facts: &Facts, now: Timestamp) -> RLJobStatus {
    let job = validated();
    next(&job, old, facts, &decide(&job, facts, now), None, now).status
}

fn unvisited() -> RLJobStatus {
    RLJobStatus { observed_generation: Some(-1), ..RLJobStatus::default() }
}

fn running() -> Facts {
    let mut facts = facts();
    let report = facts.coordinator.as_mut().unwrap();
    report.attempt = 1;
    report.restarts = 1;
    report.checkpoint = Some(Version { step: 5, attempt: 0 });
    report.metrics =
        Some(StepMetrics::with_scalars(7, [("reward", 0.5), ("tokensPerSecond", 1200.0)]));
    report.engines = vec![EngineState {
        name: "sums-inference-0".to_owned(),
        state: EngineCondition::Ready,
        version: Some(Version { step: 7, attempt: 1 }),
        silent_seconds: None,
        uid: None,
        unsuitable: None,
    }];
    report.last_failure = Some(LearnerFailure {
        reason: "LearnerExited".to_owned(),
        message: "exit code 1".to_owned(),
        supervisor: Some("sums-trainer-0".to_owned()),
        exit_code: Some(1),
    });
    facts
}

#[test]
fn starting() {
    let mut facts = facts();
    (facts.recorded, facts.epoch) = (Recorded::default(), Epoch::default());
    facts.coordinator = None;
    facts.roles = Roles::default();
    insta::assert_yaml_snapshot!(status(&unvisited(), &facts, at(0)));
}

#[test]
fn a_download_is_shown_while_pods_wait_for_it() {
    let mut facts = facts();
    facts.roles = Roles::default();
    let download = DownloadProgress {
        repository: "lab/tiny".to_owned(),
        downloaded_bytes: 3 << 20,
        total_bytes: 9 << 20,
    };
    assert_eq!(download.to_string(), "downloading lab/tiny: 3 of 9 MiB");
    facts.coordinator = facts.coordinator.map(|report| CoordinatorStatus {
        phase: Phase::Starting,
        download: Some(download),
        ..report
    });
    assert_eq!(
        super::text::waits_for(&validated(), &facts),
        "downloading the Hugging Face repository lab/tiny"
    );
}

#[test]
fn the_export_of_another_job_is_named_while_pods_wait_for_it() {
    let mut job = validated();
    job.spec.model.path = None;
    job.spec.model.rljob = Some(JobModelSource { name: "warmup".to_owned() });
    let mut facts = running();
    let report = facts.coordinator.take();
    facts.coordinator = report.map(|report| CoordinatorStatus { phase: Phase::Starting, ..report });
    facts.roles.inference.ready = 0;
    facts.recorded.training_since = None;
    let expected = "waiting for 2 of 2 inference pods; the model is the export of RLJob warmup, \
                    which must be complete";
    assert_eq!(super::text::waits_for(&job, &facts), expected);
    facts.recorded.training_since = Some(at(0));
    assert_eq!(super::text::waits_for(&job, &facts), "waiting for 2 of 2 inference pods");
}

#[test]
fn running_after_a_restart() {
    insta::assert_yaml_snapshot!(status(&unvisited(), &running(), at(0)));
}

#[test]
fn unresponsive() {
    let mut facts = running();
    let error = "connection refused".to_owned();
    facts.silence = Some(Silence { since: at(0), error, restarts: 2 });
    let old = status(&unvisited(), &running(), at(0));
    insta::assert_yaml_snapshot!(status(&old, &facts, at(60)));
}

#[test]
fn draining() {
    let mut facts = running();
    facts.suspend = true;
    let old = status(&unvisited(), &running(), at(0));
    insta::assert_yaml_snapshot!(status(&old, &facts, at(60)));
}

#[test]
fn suspended() {
    let mut facts = facts();
    facts.suspend = true;
    facts.coordinator = None;
    facts.roles = Roles::default();
    let old = status(&unvisited(), &running(), at(0));
    insta::assert_yaml_snapshot!(status(&old, &facts, at(60)));
}

#[test]
fn queued() {
    let mut facts = facts();
    facts.queue = Some(Queue { hold: Some("waiting for Kueue".to_owned()), ignored: Vec::new() });
    facts.coordinator = None;
    facts.roles = Roles::default();
    let old = status(&unvisited(), &running(), at(0));
    insta::assert_yaml_snapshot!(status(&old, &facts, at(60)));
}

#[test]
fn an_evicted_job_drains_and_names_the_cause_and_settings_without_quota() {
    let mut facts = running();
    let ignored = vec!["spec.inference.replicas is 2".to_owned()];
    facts.queue = Some(Queue { hold: Some("Kueue evicted it".to_owned()), ignored });
    let old = status(&unvisited(), &running(), at(0));
    insta::assert_yaml_snapshot!(status(&old, &facts, at(60)));
}

#[test]
fn finished() {
    let mut facts = running();
    facts.coordinator.as_mut().unwrap().phase = Phase::Finished;
    let new = status(&status(&unvisited(), &running(), at(0)), &facts, at(60));
    insta::assert_yaml_snapshot!(new);
    let recorded = recorded(&new);
    assert_eq!(
        recorded.outcome,
        Some(Outcome {
            message: "completed 7 steps and exported the model".to_owned(),
            ..outcome()
        })
    );
    facts.recorded = recorded;
    facts.coordinator = None;
    assert_eq!(status(&new, &facts, at(120)), new, "a finished job is not written again");
}

#[test]
fn a_run_that_resumes_after_its_end_has_a_new_start_and_no_end() {
    let mut facts = running();
    facts.coordinator.as_mut().unwrap().phase = Phase::Finished;
    let old = status(&status(&unvisited(), &running(), at(0)), &facts, at(60));
    assert_eq!(old.completion_time, Some(Time(at(60))));
    facts.recorded = recorded(&old);
    facts.coordinator = None;
    let mut job = validated();
    job.spec.training.steps = 2 * facts.recorded.total_steps.unwrap();
    let decision = decide(&job, &facts, at(120));
    let new = next(&job, &old, &facts, &decision, None, at(120)).status;
    assert_eq!(
        (new.completion_time, new.active_since, new.start_time),
        (None, Some(Time(at(120))), Some(Time(at(0))))
    );
    let succeeded = new.conditions.iter().find(|condition| condition.type_ == "Succeeded");
    assert_eq!(succeeded.unwrap().status, "Unknown");
}

#[test]
fn failed() {
    let mut facts = running();
    facts.coordinator.as_mut().unwrap().phase = Phase::Failed;
    insta::assert_yaml_snapshot!(status(&unvisited(), &facts, at(0)));
}

#[test]
fn invalid_spec() {
    insta::assert_yaml_snapshot!(stalled(
        4,
        &unvisited(),
        REASON_INVALID_SPEC,
        "spec.rewards: is missing; algorithm.grpo needs rewards",
        at(0)
    ));
}

#[test]
fn after_a_deleted_job_of_the_same_name() {
    let obstacle = Obstacle::leftovers(&["ConfigMap sums-run".to_owned()]).unwrap();
    let Obstacle { reason, message } = obstacle;
    insta::assert_yaml_snapshot!(stalled(4, &unvisited(), reason, &message, at(0)));
}

#[test]
fn progress_alone_is_written_once_a_minute() {
    let old = status(&unvisited(), &running(), at(0));
    let mut facts = running();
    facts.coordinator.as_mut().unwrap().step = 8;
    assert_eq!(status(&old, &facts, at(59)), old);
    assert_eq!(status(&old, &facts, at(60)).progress.unwrap().step, 8);
    facts.roles.inference.ready = 1;
    assert_eq!(
        status(&old, &facts, at(1)).progress.unwrap().step,
        8,
        "written with another change"
    );
}

#[test]
fn attempt_and_restarts_never_decrease() {
    let old = RLJobStatus { attempt: 5, restarts: 2, ..unvisited() };
    let new = status(&old, &running(), at(0));
    assert_eq!((new.attempt, new.restarts), (5, 2));
    let new = status(&unvisited(), &running(), at(0));
    assert_eq!((new.attempt, new.restarts), (1, 1));
}

#[test]
fn missing_weights_become_a_failure_when_overdue() {
    let mut facts = running();
    facts.coordinator.as_mut().unwrap().engines.clear();
    let synced = |status: &RLJobStatus| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == "WeightsSynced")
            .unwrap()
            .clone()
    };
    let first = status(&unvisited(), &facts, at(0));
    assert_eq!(
        (synced(&first).status.as_str(), synced(&first).reason.as_str()),
        ("Unknown", "Syncing")
    );
    let later = status(&first, &facts, at(600));
    assert_eq!(synced(&later), synced(&first));
    for up_since in [None, Some(at(300))] {
        let booting = Facts { engine_up_since: up_since, ..facts.clone() };
        let waits = status(&later, &booting, at(601));
        assert_eq!(synced(&waits), synced(&first), "counted from the first engine that is up");
    }
    let overdue = status(&later, &facts, at(601));
    assert_eq!(
        (synced(&overdue).status.as_str(), synced(&overdue).reason.as_str()),
        ("False", "Overdue")
    );
    assert_eq!(synced(&status(&overdue, &running(), at(700))).status, "True");
}

#[test]
fn settings_without_effect_are_a_condition() {
    let find = |status: &RLJobStatus| {
        let conditions = status.conditions.iter();
        let found = conditions.filter(|condition| condition.type_ == "SettingsEffective");
        found.map(|it| format!("{} {}: {}", it.status, it.reason, it.message)).collect::<Vec<_>>()
    };
    let mut job = validated();
    let decision = decide(&job, &running(), at(0));
    let plain = next(&job, &unvisited(), &running(), &decision, None, at(0)).status;
    assert_eq!(find(&plain), [""; 0]);
    job.spec.optimizer.minimum_learning_rate = 0.1;
    let ineffective = next(&job, &plain, &running(), &decision, None, at(1)).status;
    let expected = "False WithoutEffect: spec.optimizer.minimumLearningRate: has no effect: \
        schedule Constant does not decay";
    assert_eq!(find(&ineffective), [expected]);
}

#[test]
fn a_tracker_that_fails_is_a_condition_until_it_answers() {
    let job = validated();
    let tracked = |failure: Option<&str>, old: &RLJobStatus| {
        let mut facts = running();
        facts.coordinator.as_mut().unwrap().tracker_failure = failure.map(ToOwned::to_owned);
        let decision = decide(&job, &facts, at(0));
        let status = next(&job, old, &facts, &decision, None, at(0)).status;
        let mut conditions = status.conditions.clone().into_iter();
        let found = conditions.find(|condition| condition.type_ == "MetricsTracked");
        let text = found.map(|it| format!("{} {}: {}", it.status, it.reason, it.message));
        (text, status)
    };
    let (text, failing) = tracked(Some("MLflow: failed to reach the server"), &unvisited());
    let expected = "False TrackerUnavailable: MLflow: failed to reach the server; the run \
        continues, and what is missing is sent later";
    assert_eq!(text.as_deref(), Some(expected));
    assert_eq!(tracked(None, &failing).0, None);
}

#[test]
fn rejected_children_stall_the_job_and_the_next_pass_writes_nothing() {
    let old = status(&unvisited(), &running(), at(0));
    let mut facts = running();
    facts.obstacle = Some(Obstacle {
        reason: "ChildRejected",
        message: "the API server rejected StatefulSet sums-trainer: no quota".to_owned(),
    });
    let computed = |old: &RLJobStatus, now| status(old, &facts, now);
    let new = computed(&old, at(1));
    let summary = |type_: &str| {
        new.conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .map(|condition| (condition.status.as_str(), condition.reason.as_str()))
    };
    assert_eq!(summary("Succeeded"), Some(("Unknown", "ChildRejected")));
    assert_eq!(summary("Stalled"), Some(("True", "ChildRejected")));
    assert_eq!(summary("TrainerReady"), Some(("True", "PodsReady")));
    assert_eq!(computed(&new, at(120)), new);
}
