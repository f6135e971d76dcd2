//! Tests of the names, types and labels of all metrics.

use std::time::Duration;

use rljob_protocol::metrics::{EvaluationMetrics, StepMetrics};
use rljob_protocol::status::{CoordinatorStatus, GroupState, VerifierLoad};
use rljob_tests::files::{prometheus, required};
use rljob_tests::metric_types;

use super::Metrics;

/// All metrics, each with a sample.
fn complete_text() -> String {
    let metrics = Metrics::new(1).unwrap();
    metrics.step_done(&StepMetrics::with_scalars::<String>(1, []), 1.0);
    let suites = [("gsm8k".to_owned(), EvaluationMetrics::default())].into();
    metrics.evaluated(&EvaluationMetrics { suites, ..EvaluationMetrics::default() });
    metrics.rejected_samples.with_label_values(&["timeout"]).inc();
    metrics.tool_calls.count("add", "result");
    let group = GroupState {
        name: "frozen".to_owned(),
        attempt: 0,
        restarts: 0,
        running: true,
        last_failure: None,
        supervisors: Vec::new(),
        memory: None,
    };
    let status = CoordinatorStatus {
        groups: vec![group],
        verifiers: Some(VerifierLoad::default()),
        ..CoordinatorStatus::default()
    };
    metrics.render(&status, Duration::ZERO).unwrap()
}

#[test]
fn the_documents_have_the_type_and_labels_of_each_metric() {
    let documented = metric_types::documented("Metric of the coordinator").unwrap();
    assert_eq!(metric_types::scraped(&complete_text()), documented);
}

#[test]
fn promtool_accepts_names_units_and_help_texts() {
    if required(prometheus("promtool")).is_some() {
        metric_types::check(&complete_text()).unwrap();
    }
}
