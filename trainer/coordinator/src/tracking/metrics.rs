//! Trackers of metrics: records of the journal that a tracker lacks.
//!
//! A tracker knows its position itself, from its files or its server, so that a restart leaves
//! nothing out.

use std::future::Future;

use rljob_protocol::metrics::{EvaluationMetrics, StepMetrics};
use rljob_protocol::status::Phase;
use serde::Serialize;
use serde_json::Value;

use super::{Tracker, TrackerError};
use crate::persistence::journal::shared::SharedJournal;
use crate::persistence::journal::{Journal, JournalError};
use crate::run_handle::RunHandle;

/// Most steps and evaluations that a tracker gets at a time.
const MAX_RECORDS: usize = 100;

/// Newest records that a tracker has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Newest step; 0 before the first.
    pub step: u32,
    /// Step of the newest evaluation.
    pub evaluation: Option<u32>,
}

/// Records in the order of their steps.
#[derive(Debug, Default, PartialEq)]
pub struct Records {
    pub steps: Vec<StepMetrics>,
    pub evaluations: Vec<EvaluationMetrics>,
}

/// A consumer of metrics.
pub trait MetricsTracker: Send {
    /// Name in logs.
    const NAME: &'static str;

    /// Newest records that the tracker has.
    fn position(&mut self) -> impl Future<Output = Result<Position, TrackerError>> + Send;

    /// Adds records that come after the position.
    fn add(&mut self, records: &Records) -> impl Future<Output = Result<(), TrackerError>> + Send;

    /// Notes the phase of a run whose records are all added. Called after every look.
    fn note(&mut self, phase: Phase) -> impl Future<Output = Result<(), TrackerError>> + Send;
}

/// Copies the metrics of a run to a tracker.
pub struct MetricsCopy<T> {
    pub tracker: T,
    pub journal: SharedJournal,
    pub run: RunHandle,
}

impl<T: MetricsTracker> Tracker for MetricsCopy<T> {
    const NAME: &'static str = T::NAME;

    async fn copy(&mut self) -> Result<(), TrackerError> {
        let Self { tracker, journal, run } = self;
        // Read first, so that the records of a run that has ended are complete.
        let phase = run.read(crate::core::Run::phase).await;
        loop {
            let position = tracker.position().await?;
            let records = journal.call(move |journal| records_after(journal, position)).await?;
            if records == Records::default() {
                return tracker.note(phase).await;
            }
            tracker.add(&records).await?;
        }
    }
}

/// The next records of the journal.
fn records_after(journal: &Journal, position: Position) -> Result<Records, JournalError> {
    let mut records = Records::default();
    for step in position.step.saturating_add(1)..=journal.last_step()? {
        if records.steps.len() == MAX_RECORDS {
            break;
        }
        records.steps.extend(journal.metrics(step)?);
    }
    let evaluated = journal.evaluated_steps()?.into_iter();
    for step in evaluated.filter(|step| Some(*step) > position.evaluation).take(MAX_RECORDS) {
        records.evaluations.extend(journal.evaluation(step)?);
    }
    Ok(records)
}

/// All numbers of a record except `step`, by their JSON names; `passAt/4` is field `4` of `passAt`,
/// and `gsm8k/greedy` field `greedy` of suite `gsm8k`.
pub fn scalars(record: &impl Serialize) -> serde_json::Result<Vec<(String, f64)>> {
    let mut numbers = Vec::new();
    let mut record = serde_json::to_value(record)?;
    let suites = record.as_object_mut().and_then(|fields| fields.remove("suites"));
    collect("", &record, &mut numbers);
    for (name, suite) in suites.iter().filter_map(Value::as_object).flatten() {
        let fields = suite.as_object().into_iter().flatten().filter(|(field, _)| *field != "step");
        fields.for_each(|(field, value)| collect(&format!("{name}/{field}"), value, &mut numbers));
    }
    Ok(numbers)
}

fn collect(name: &str, value: &Value, numbers: &mut Vec<(String, f64)>) {
    match value {
        Value::Number(number) if name != "step" => {
            numbers.extend(number.as_f64().map(|number| (name.to_owned(), number)));
        }
        Value::Object(fields) if name.is_empty() => {
            fields.iter().for_each(|(field, value)| collect(field, value, numbers));
        }
        Value::Object(fields) => fields
            .iter()
            .for_each(|(field, value)| collect(&format!("{name}/{field}"), value, numbers)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracker_gets_the_records_after_its_position_in_parts() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&folder.path().join("journal.sqlite")).unwrap();
        for step in 1..=150 {
            journal.report_step(&StepMetrics::with_scalars(step, [("reward", 0.5)])).unwrap();
        }
        for step in [0, 150] {
            let evaluation = EvaluationMetrics { step, ..EvaluationMetrics::default() };
            journal.put_evaluation(&evaluation).unwrap();
        }
        let after = |step, evaluation| {
            let records = records_after(&journal, Position { step, evaluation }).unwrap();
            let steps: Vec<u32> = records.steps.iter().map(|metrics| metrics.step).collect();
            let evaluations = records.evaluations.iter().map(|metrics| metrics.step);
            (steps, evaluations.collect::<Vec<_>>())
        };
        assert_eq!(after(0, None), ((1..=100).collect(), vec![0, 150]));
        assert_eq!(after(100, Some(0)), ((101..=150).collect(), vec![150]));
        assert_eq!(after(150, Some(150)), (vec![], vec![]));
    }

    #[test]
    fn missing_metrics_are_omitted() {
        let scalars = scalars(&EvaluationMetrics {
            step: 3,
            greedy: Some(0.75),
            ..EvaluationMetrics::default()
        })
        .unwrap();
        assert!(scalars.contains(&("greedy".to_owned(), 0.75)));
        assert!(scalars.iter().all(|(name, _)| name != "step"));
        let suite = EvaluationMetrics {
            greedy: Some(0.5),
            pass_at: [(4, 1.0)].into(),
            ..EvaluationMetrics::default()
        };
        let suites = [("gsm8k".to_owned(), suite)].into();
        let named =
            super::scalars(&EvaluationMetrics { suites, ..EvaluationMetrics::default() }).unwrap();
        let of_suite = named.iter().filter(|(name, _)| name.starts_with("gsm8k/"));
        let names: Vec<&str> = of_suite.map(|(name, _)| name.as_str()).collect();
        let expected = ["greedy", "passAt/4", "prompts", "samples", "seconds"];
        assert_eq!(names, expected.map(|name| format!("gsm8k/{name}")));
        let none = super::scalars(&StepMetrics::default()).unwrap();
        assert!(none.iter().all(|(name, _)| name != "reward"));
    }
}
