//! Conditions and messages of jobs that lack learners or engines, or whose objects are rejected.

use rljob_protocol::status::RewardOutage;
use serde_json::{Value, json};

use super::super::events::{StatusEvent, events};
use super::super::text::waits_for;
use super::*;
use crate::decide::Waiting;
use crate::validate::ValidatedJob;
use crate::validate::test_support::with_spec;

/// Type, status and reason of conditions that not every job has.
fn further(status: &RLJobStatus) -> Vec<String> {
    let types = ["EvaluationReady", "VerifiersReady", "SettingsEffective", "MetricsTracked"];
    let own = status.conditions.iter().filter(|own| types.contains(&own.type_.as_str()));
    own.map(|own| format!("{} {} {}", own.type_, own.status, own.reason)).collect()
}

#[test]
fn a_job_whose_objects_are_rejected_keeps_the_conditions_of_all_of_its_parts() {
    let job = with_spec(&json!({
        "dataset": {"evaluation": {
            "path": "/models/test.jsonl", "prompt": "{{question}}", "answer": "answer",
        }},
        "evaluation": {"engines": {"replicas": 1}},
        "inference": {"minReplicas": 3},
    }));
    let mut facts = running();
    facts.coordinator.as_mut().unwrap().tracker_failure = Some("MLflow: no route".to_owned());
    let status = |old: &RLJobStatus, facts: &Facts| {
        next(&job, old, facts, &decide(&job, facts, at(0)), None, at(0)).status
    };
    let old = status(&unvisited(), &facts);
    let expected = [
        "EvaluationReady False PodsNotReady",
        "SettingsEffective False WithoutEffect",
        "MetricsTracked False TrackerUnavailable",
    ];
    assert_eq!(further(&old), expected);
    let message = "the API server rejected StatefulSet sums-trainer: no quota".to_owned();
    facts.obstacle = Some(Obstacle { reason: "ChildRejected", message });
    assert_eq!(further(&status(&old, &facts)), expected);
}

#[test]
fn a_start_waits_for_the_processes_that_the_job_has() {
    let imitating = |engines: i32| {
        with_spec(&json!({
            "dataset": {"train": {"completion": "{{answer}}"}},
            "algorithm": {"grpo": null, "sft": {}},
            "rewards": [],
            "inference": {"replicas": engines},
        }))
    };
    let mut evaluating = validated();
    evaluating.spec.algorithm = serde_json::from_value(json!({"evaluation": {}})).unwrap();
    let facts = running();
    let of = |job: ValidatedJob| waits_for(&job, &facts);
    let expected = |processes| format!("all pods are ready; the coordinator waits for {processes}");
    assert_eq!(of(imitating(0)), expected("learners"));
    assert_eq!(of(imitating(2)), expected("learners and engines"));
    assert_eq!(of(evaluating), expected("engines"));
}

#[test]
fn a_run_that_waits_for_the_end_of_a_failure_has_a_warning() {
    let old = status(&unvisited(), &running(), at(0));
    let mut facts = running();
    let outage: Value = json!({"reward": "judge", "cause": "refused", "seconds": 60});
    let outage: RewardOutage = serde_json::from_value(outage).unwrap();
    facts.coordinator.as_mut().unwrap().reward_outage = Some(outage);
    let waiting = status(&old, &facts, at(60));
    let event = |warning, reason: &str, note: &str| StatusEvent {
        warning,
        reason: reason.to_owned(),
        note: note.to_owned(),
        ..StatusEvent::default()
    };
    let note = "sampling waits for judge: refused";
    assert_eq!(events(&old, &waiting), [event(true, "RewardUnavailable", note)]);
    let resumed = status(&waiting, &running(), at(120));
    assert_eq!(events(&waiting, &resumed), [event(false, "Running", "training")]);
}

#[test]
fn the_condition_of_a_role_names_what_its_pods_wait_for() {
    let mut facts = running();
    facts.roles.inference.ready = 1;
    facts.roles.trainer.ready = 0;
    let waiting = |pod: &str, reason: &str| Waiting {
        name: pod.to_owned(),
        reason: reason.to_owned(),
        message: format!("container of {pod}: {reason}"),
        needs_user: false,
    };
    facts.waiting = vec![
        waiting("sums-coordinator-0", "CrashLoopBackOff"),
        waiting("sums-inference-1", "ImagePullBackOff"),
    ];
    let status = status(&unvisited(), &facts, at(0));
    let message = |type_: &str| {
        let own = status.conditions.iter().find(|own| own.type_ == type_).unwrap();
        own.message.clone()
    };
    let cause = "container of sums-inference-1: ImagePullBackOff";
    assert_eq!(message("InferenceReady"), format!("1 of 2 pods are ready; {cause}"));
    assert_eq!(message("TrainerReady"), "0 of 1 pods are ready");
}

#[test]
fn pods_beyond_the_number_in_the_spec_are_not_counted_as_ready() {
    let mut facts = running();
    facts.roles.inference.ready = 3;
    let status = status(&unvisited(), &facts, at(0));
    let ready = status.conditions.iter().find(|own| own.type_ == "InferenceReady").unwrap();
    assert_eq!(ready.message, "2 of 2 pods are ready");
}
