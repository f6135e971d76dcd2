//! Overview of a run: what the page shows except samples. Pure.

use std::collections::{BTreeMap, BTreeSet};

use rljob_crds::dataflow::Plan;
use rljob_crds::status::Incident;
use rljob_protocol::memory::MemoryPlan;
use rljob_protocol::metrics::{EvaluationMetrics, StepMetrics};
use rljob_protocol::status::CoordinatorStatus;
use serde::{Deserialize, Serialize};

/// Changes that a start of a run accepted (`rljob run --accept-changes`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcceptedChanges {
    /// Steps that the run had done.
    pub step: u32,
    /// Fields of the spec that differ, or whose programs or functions have other contents.
    pub fields: Vec<String>,
}

impl AcceptedChanges {
    /// Adds changes to those of a run, oldest first. Changes at the same step are one entry.
    pub fn add(self, to: &mut Vec<Self>) {
        match to.last_mut().filter(|last| last.step >= self.step) {
            Some(last) => {
                last.step = self.step;
                let new = self.fields.into_iter().filter(|field| !last.fields.contains(field));
                last.fields.extend(new.collect::<Vec<_>>());
            }
            None => to.push(self),
        }
    }
}

/// Facts about a run that its records do not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunInfo {
    /// `namespace/name` of the job.
    pub name: String,
    /// As in the STATUS column of RLJobs.
    pub status: String,
    /// Whether records may be added.
    pub is_running: bool,
    /// Cause of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    pub total_steps: u32,
    /// The spec with its defaults, as YAML.
    pub spec: String,
    /// Dataflow of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// Report of the coordinator while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<CoordinatorStatus>,
    /// Memory plan of the newest learners on GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryPlan>,
    /// Disruptions of pods, oldest first; of runs on a cluster while their coordinator runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<Incident>,
    /// Changes of the spec since the run began, oldest first; of runs by `rljob run`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<AcceptedChanges>,
}

/// What the page shows of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview<'a> {
    #[serde(flatten)]
    pub info: &'a RunInfo,
    /// Newest completed step.
    pub step: u32,
    /// Values by name, one for each entry of `step`, which is always there.
    pub columns: BTreeMap<String, Vec<Option<f64>>>,
    /// Number of recorded steps; `columns` may have fewer.
    pub recorded_steps: u64,
    pub evaluations: Vec<&'a EvaluationMetrics>,
    /// Some of the steps with samples.
    pub sample_steps: Vec<u32>,
    /// Some of the steps with evaluated completions.
    pub answer_steps: Vec<u32>,
}

/// Columns beside the scalars of the metrics.
const STEP: &str = "step";
const ATTEMPT: &str = "attempt";
const STALENESS_MEAN: &str = "stalenessMean";
const STALENESS_MAX: &str = "stalenessMax";

/// The metrics by name. Values have six digits, which no curve needs more of.
pub fn columns(steps: &[&StepMetrics]) -> BTreeMap<String, Vec<Option<f64>>> {
    let names: BTreeSet<&str> =
        steps.iter().flat_map(|step| step.scalars.iter().map(|(name, _)| name)).collect();
    let column = |value: &dyn Fn(&StepMetrics) -> Option<f64>| -> Vec<Option<f64>> {
        steps.iter().map(|step| value(step).map(six_digits)).collect()
    };
    let mut columns: BTreeMap<String, Vec<Option<f64>>> =
        names.into_iter().map(|name| (name.to_owned(), column(&|step| step.get(name)))).collect();
    columns.insert(STEP.to_owned(), column(&|step| Some(f64::from(step.step))));
    columns.insert(ATTEMPT.to_owned(), column(&|step| Some(f64::from(step.attempt))));
    if steps.iter().any(|step| step.staleness.keys().any(|staleness| *staleness > 0)) {
        columns.insert(STALENESS_MEAN.to_owned(), column(&staleness_mean));
        let max = |step: &StepMetrics| step.staleness.keys().last().map(|max| f64::from(*max));
        columns.insert(STALENESS_MAX.to_owned(), column(&max));
    }
    columns
}

/// Mean staleness of the samples of a step.
fn staleness_mean(step: &StepMetrics) -> Option<f64> {
    let entries = step.staleness.iter();
    let (sum, count) = entries.fold((0.0, 0.0), |(sum, count), (staleness, samples)| {
        (sum + f64::from(*staleness) * f64::from(*samples), count + f64::from(*samples))
    });
    (count > 0.0).then(|| sum / count)
}

fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_changes_at_the_same_step_are_one_entry() {
        let of = |step, fields: &[&str]| AcceptedChanges {
            step,
            fields: fields.iter().map(|&field| field.to_owned()).collect(),
        };
        let mut all = Vec::new();
        for changes in [of(2, &["a"]), of(2, &["b", "a"]), of(4, &["c"])] {
            changes.add(&mut all);
        }
        assert_eq!(all, [of(2, &["a", "b"]), of(4, &["c"])]);
    }

    #[test]
    fn columns_have_a_value_or_null_for_each_step() {
        let mut first = StepMetrics::with_scalars(1, [("reward", 1.0 / 3.0)]);
        let second = StepMetrics::with_scalars(2, [("reward", 0.5), ("kl", 1.234_567_89e-14)]);
        first.staleness = BTreeMap::from([(0, 3), (2, 1)]);
        let expected = [
            ("attempt", vec![Some(0.0), Some(0.0)]),
            ("kl", vec![None, Some(1.234_57e-14)]),
            ("reward", vec![Some(0.333_333), Some(0.5)]),
            ("stalenessMax", vec![Some(2.0), None]),
            ("stalenessMean", vec![Some(0.5), None]),
            ("step", vec![Some(1.0), Some(2.0)]),
        ];
        let expected = expected.map(|(name, values)| (name.to_owned(), values));
        assert_eq!(columns(&[&first, &second]), BTreeMap::from(expected));
    }
}
