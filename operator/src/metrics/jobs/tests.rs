//! Tests of the samples of jobs, and of their size.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use prometheus::{Encoder, TextEncoder};
use rljob_crds::names::{
    CONDITION_RECONCILING, REASON_AS_EXPECTED, REASON_COORDINATOR_UNRESPONSIVE, REASON_OVERDUE,
};
use rljob_crds::status::{CheckpointStatus, InferenceStatus, RoleStatus, TrainerGroupStatus};

use super::*;
use crate::decide::test_support::at;
use crate::validate::test_support::minimal;

fn condition(type_: &str, status: &str, reason: &str) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        last_transition_time: Time(at(0)),
        observed_generation: None,
    }
}

fn job(namespace: &str, name: &str, status: Option<RLJobStatus>) -> Arc<RLJob> {
    let mut job = minimal();
    job.metadata.namespace = Some(namespace.to_owned());
    job.metadata.name = Some(name.to_owned());
    job.status = status;
    Arc::new(job)
}

/// A run in training that has restarted, lost an engine and whose coordinator is silent.
fn disturbed() -> RLJobStatus {
    let reason = REASON_COORDINATOR_UNRESPONSIVE;
    RLJobStatus {
        conditions: vec![
            condition(CONDITION_SUCCEEDED, "Unknown", reason),
            condition(CONDITION_READY, "False", reason),
            condition(CONDITION_RECONCILING, "True", reason),
            condition(CONDITION_STALLED, "False", REASON_AS_EXPECTED),
            condition(CONDITION_WEIGHTS_SYNCED, "False", REASON_OVERDUE),
        ],
        attempt: 3,
        restarts: 1,
        training_since: Some(Time(at(0))),
        inference: Some(InferenceStatus { desired: 2, ready: 1, ..InferenceStatus::default() }),
        trainer: Some(RoleStatus { desired: 1, ready: 1 }),
        ..RLJobStatus::default()
    }
}

fn text(jobs: &[Arc<RLJob>]) -> String {
    let mut text = Vec::new();
    TextEncoder::new().encode(&families(jobs, true).unwrap(), &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn samples(jobs: &[Arc<RLJob>]) -> Vec<String> {
    text(jobs).lines().filter(|line| !line.starts_with('#')).map(ToOwned::to_owned).collect()
}

#[test]
fn the_metrics_of_each_job_can_be_left_out() {
    let job = job("lab", "sums", Some(disturbed()));
    let names = |of_each| {
        let found = families(&[Arc::clone(&job)], of_each).unwrap();
        found.iter().map(|family| family.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(false), ["rljob_job_conditions", "rljob_jobs"]);
    assert!(names(true).contains(&"rljob_job_restarts_total".to_owned()));
}

#[test]
fn a_job_has_its_conditions_restarts_checkpoint_and_pods() {
    let start = at(0).as_second();
    let own = r#"name="sums",namespace="lab""#;
    let status = |type_: &str, status: &str, reason: &str| {
        format!(
            "rljob_job_status_condition{{{own},reason=\"{reason}\",status=\"{status}\",\
             type=\"{type_}\"}} 1"
        )
    };
    let count = |type_: &str, status: &str| {
        format!("rljob_job_conditions{{status=\"{status}\",type=\"{type_}\"}} 1")
    };
    let expected = [
        format!("rljob_job_checkpoint_timestamp_seconds{{{own}}} {start}"),
        count("Ready", "False"),
        count("Stalled", "False"),
        count("WeightsSynced", "False"),
        count("Reconciling", "True"),
        count("Succeeded", "Unknown"),
        format!("rljob_job_replicas_desired{{{own},role=\"inference\"}} 2"),
        format!("rljob_job_replicas_desired{{{own},role=\"trainer\"}} 1"),
        format!("rljob_job_replicas_ready{{{own},role=\"inference\"}} 1"),
        format!("rljob_job_replicas_ready{{{own},role=\"trainer\"}} 1"),
        format!("rljob_job_restarts_total{{{own}}} 3"),
        status("Stalled", "False", "AsExpected"),
        status("Ready", "False", "CoordinatorUnresponsive"),
        status("Succeeded", "Unknown", "CoordinatorUnresponsive"),
        status("WeightsSynced", "False", "Overdue"),
        "rljob_jobs{state=\"CoordinatorUnresponsive\"} 1".to_owned(),
    ];
    let mut found = samples(&[job("lab", "sums", Some(disturbed()))]);
    found.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn evaluation_engines_and_groups_have_their_pods_and_restarts() {
    let group = TrainerGroupStatus {
        name: "frozen".to_owned(),
        desired: 2,
        ready: 1,
        attempt: 4,
        restarts: 1,
        memory: None,
    };
    let status = RLJobStatus {
        evaluation: Some(RoleStatus { desired: 2, ready: 0 }),
        trainer_groups: vec![group],
        ..RLJobStatus::default()
    };
    let own = r#"name="sums",namespace="lab""#;
    let pods = |kind: &str, role: &str, count: u32| {
        format!("rljob_job_replicas_{kind}{{{own},role=\"{role}\"}} {count}")
    };
    let expected = [
        format!("rljob_job_group_restarts_total{{group=\"frozen\",{own}}} 4"),
        pods("desired", "evaluation", 2),
        pods("desired", "trainer-group", 2),
        pods("ready", "evaluation", 0),
        pods("ready", "trainer-group", 1),
        format!("rljob_job_restarts_total{{{own}}} 0"),
        "rljob_jobs{state=\"Starting\"} 1".to_owned(),
    ];
    assert_eq!(samples(&[job("lab", "sums", Some(status))]), expected);
}

#[test]
fn a_job_without_status_is_counted_as_starting() {
    assert_eq!(samples(&[job("lab", "new", None)]), [r#"rljob_jobs{state="Starting"} 1"#]);
    assert_eq!(samples(&[]), Vec::<String>::new());
}

#[test]
fn the_checkpoint_of_a_resumed_run_counts_from_the_resume() {
    let saved = |second| {
        Some(CheckpointStatus { time: Some(Time(at(second))), ..CheckpointStatus::default() })
    };
    let running = RLJobStatus { training_since: Some(Time(at(10))), ..RLJobStatus::default() };
    let with = |checkpoint| RLJobStatus { checkpoint, ..running.clone() };
    let seconds = |status: &RLJobStatus| unsaved_since(status).map(|time| time - at(0).as_second());
    assert_eq!(seconds(&running), Some(10));
    assert_eq!(seconds(&with(saved(4))), Some(10), "saved before the suspension");
    assert_eq!(seconds(&with(saved(30))), Some(30));
    assert_eq!(seconds(&RLJobStatus { training_since: None, ..with(saved(4)) }), None, "suspended");
    let ended = RLJobStatus { completion_time: Some(Time(at(40))), ..with(saved(30)) };
    assert_eq!(seconds(&ended), None, "ended");
}

#[test]
fn a_scrape_of_1000_jobs_has_at_most_2_mb() {
    let first = job("team-reasoning-research", "", Some(disturbed()));
    let jobs: Vec<Arc<RLJob>> = (0..1000)
        .map(|number| {
            let mut job = RLJob::clone(&first);
            job.metadata.name = Some(format!("gsm8k-grpo-qwen2-5-1-5b-seed-{number}"));
            Arc::new(job)
        })
        .collect();
    let bytes = text(&jobs).len();
    assert!(bytes <= 2_000_000, "{bytes} bytes");
}
