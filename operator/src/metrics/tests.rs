//! Tests of counters, label limits and gauges.

use super::*;
use crate::decide::test_support::{at, report};
use crate::validate::test_support::minimal;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::names::CONDITION_SUCCEEDED;
use rljob_crds::status::{
    CheckpointStatus, Failure, Incident, InferenceStatus, TrainerGroupStatus,
};
use rljob_protocol::status::{EngineCondition, EngineState};
use rljob_tests::files::{prometheus, required};
use rljob_tests::metric_types;
use std::sync::Arc;

fn status(ready: &str, reason: &str, attempt: u32, restarts: u32) -> RLJobStatus {
    let conditions = [CONDITION_SUCCEEDED, CONDITION_READY].map(|type_| Condition {
        type_: type_.to_owned(),
        status: ready.to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        last_transition_time: Time(at(0)),
        observed_generation: None,
    });
    let last_failure = (restarts > 0)
        .then(|| Failure { reason: "LearnerKilled".to_owned(), ..Failure::default() });
    RLJobStatus {
        conditions: conditions.into(),
        attempt,
        restarts,
        last_failure,
        ..RLJobStatus::default()
    }
}

fn samples(metrics: &Metrics, wanted: &str) -> Vec<String> {
    let watches =
        [("pods".to_owned(), Some("forbidden".to_owned())), ("services".to_owned(), None)];
    let text = metrics.text(false, None, &[], &watches, at(0)).unwrap();
    let text = String::from_utf8(text).unwrap();
    text.lines().filter(|line| line.starts_with(wanted)).map(ToOwned::to_owned).collect()
}

#[test]
fn restarts_are_counted_by_reason_and_recovery_is_measured() {
    let metrics = Metrics::new(true).unwrap();
    let restarting = status("False", REASON_RESTARTING, 2, 1);
    metrics.status_written(&status("True", "Running", 0, 0), &restarting, at(0));
    metrics.status_written(&restarting, &status("True", "Running", 2, 1), at(7));
    assert_eq!(
        samples(&metrics, "rljob_restarts_total"),
        [
            r#"rljob_restarts_total{reason="LearnerKilled"} 1"#,
            r#"rljob_restarts_total{reason="NotCounted"} 1"#
        ]
    );
    assert_eq!(samples(&metrics, "rljob_recovery_seconds_sum"), ["rljob_recovery_seconds_sum 7"]);
    assert_eq!(
        samples(&metrics, "rljob_recovery_seconds_count"),
        ["rljob_recovery_seconds_count 1"]
    );
}

#[test]
fn watches_are_healthy_or_not_by_resource() {
    assert_eq!(
        samples(&Metrics::new(true).unwrap(), "rljob_watch_healthy"),
        [
            r#"rljob_watch_healthy{resource="pods"} 0"#,
            r#"rljob_watch_healthy{resource="services"} 1"#
        ]
    );
}

#[test]
fn an_incident_is_counted_once_per_reason() {
    let metrics = Metrics::new(true).unwrap();
    let with = |incidents: &[(&str, &str)]| {
        let incident = |(reason, pod): &(&str, &str)| Incident {
            reason: (*reason).to_owned(),
            pod: (*pod).to_owned(),
            uid: (*pod).to_owned(),
            ..Incident::default()
        };
        RLJobStatus {
            incidents: incidents.iter().map(incident).collect(),
            ..RLJobStatus::default()
        }
    };
    let (first, then) = (
        with(&[("NodeNotReady", "a-b-trainer-0")]),
        with(&[("PodLost", "a-b-trainer-0"), ("Evicted", "a-b-inference-12")]),
    );
    metrics.status_written(&RLJobStatus::default(), &first, at(0));
    metrics.status_written(&first, &then, at(1));
    metrics.status_written(&then, &then, at(2));
    let expected =
        ["Evicted\",role=\"inference", "NodeNotReady\",role=\"trainer", "PodLost\",role=\"trainer"];
    assert_eq!(
        samples(&metrics, "rljob_incidents_total"),
        expected.map(|labels| format!("rljob_incidents_total{{reason=\"{labels}\"}} 1"))
    );
}

#[test]
fn the_number_of_reason_labels_is_bounded() {
    let metrics = Metrics::new(true).unwrap();
    for number in 0..100 {
        let mut new = status("True", "Running", 1, 1);
        new.last_failure =
            Some(Failure { reason: format!("Reason{number}"), ..Failure::default() });
        metrics.status_written(&RLJobStatus::default(), &new, at(0));
    }
    let reasons = samples(&metrics, "rljob_restarts_total");
    assert_eq!(reasons.len(), REASONS + 1, "{reasons:?}");
    assert!(
        reasons.contains(&r#"rljob_restarts_total{reason="Other"} 68"#.to_owned()),
        "{reasons:?}"
    );
}

#[test]
fn weight_lag_and_checkpoint_age_have_the_worst_value() {
    let version = |text: &str| Some(text.parse().unwrap());
    let engine = |version| EngineState {
        name: "e".to_owned(),
        state: EngineCondition::Ready,
        version,
        silent_seconds: None,
        uid: None,
        unsuitable: None,
    };
    let running = CoordinatorStatus {
        engines: vec![
            engine(version("step-6.attempt-0")),
            engine(version("step-4.attempt-0")),
            engine(None),
        ],
        ..report()
    };
    assert_eq!(weight_lag(&running), Some(3));
    assert_eq!(weight_lag(&CoordinatorStatus { phase: Phase::Restarting, ..running }), None);
    let trains = RLJobStatus { active_since: Some(Time(at(0))), ..RLJobStatus::default() };
    assert_eq!(checkpoint_age(&trains, at(5)), Some(5.0));
    let saved = CheckpointStatus { time: Some(Time(at(4))), ..CheckpointStatus::default() };
    assert_eq!(
        checkpoint_age(&RLJobStatus { checkpoint: Some(saved), ..trains.clone() }, at(5)),
        Some(1.0)
    );
    assert_eq!(
        checkpoint_age(&RLJobStatus { completion_time: Some(Time(at(4))), ..trains }, at(5)),
        None
    );
}

/// All metrics, each with a sample.
fn complete_text() -> String {
    let metrics = Metrics::new(true).unwrap();
    let incident = Incident { pod: "a-trainer-0".to_owned(), ..Incident::default() };
    let failed =
        RLJobStatus { incidents: vec![incident], ..status("False", REASON_RESTARTING, 1, 1) };
    metrics.status_written(&RLJobStatus::default(), &failed, at(0));
    metrics.reconciled(Duration::from_secs(1), Some("observe"));
    metrics.requests().with_label_values(&["get"]).inc();
    let watches = [("pods".to_owned(), None)];
    let mut text = metrics.text(true, None, &[], &watches, at(0)).unwrap();

    let mut job = minimal();
    job.status = Some(RLJobStatus {
        training_since: Some(Time(at(0))),
        inference: Some(InferenceStatus::default()),
        trainer_groups: vec![TrainerGroupStatus::default()],
        ..status("True", "Running", 0, 0)
    });
    let families = jobs::families(&[Arc::new(job)], true).unwrap();
    TextEncoder::new().encode(&families, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn the_documents_have_the_type_and_labels_of_each_metric() {
    let documented = metric_types::documented("Metric").unwrap();
    assert_eq!(metric_types::scraped(&complete_text()), documented);
}

#[test]
fn promtool_accepts_names_units_and_help_texts() {
    if required(prometheus("promtool")).is_some() {
        metric_types::check(&complete_text()).unwrap();
    }
}
