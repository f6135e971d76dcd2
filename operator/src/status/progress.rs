//! Progress of a run in the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::status::{EvaluationStatus, InferenceStatus, Progress, RLJobStatus, SuiteStatus};
use rljob_protocol::metrics::{self, EvaluationMetrics};
use rljob_protocol::status::{CoordinatorStatus, UNKNOWN_STEPS};

/// The progress that the coordinator reports; the recorded one while none does, or while the number
/// of steps is unknown.
pub(super) fn progress(
    old: &RLJobStatus,
    report: Option<&CoordinatorStatus>,
    inference: &InferenceStatus,
    now: Timestamp,
) -> Option<Progress> {
    let is_known = |report: &&CoordinatorStatus| report.total_steps != UNKNOWN_STEPS;
    let Some(report) = report.filter(is_known) else {
        return old.progress.clone();
    };
    let newest = |name| report.metrics.as_ref().and_then(|step| step.get(name));
    let mut new = Progress {
        step: report.step,
        total_steps: report.total_steps,
        reward: newest(metrics::REWARD),
        tokens_per_second: newest(metrics::TOKENS_PER_SECOND),
        rejected_samples: newest(metrics::REJECTED_SAMPLES)
            .map(|samples| samples as u32)
            .filter(|samples| *samples > 0),
        queued_requests: old.progress.as_ref().and_then(|old| old.queued_requests),
        // A coordinator that has just started may report none.
        evaluation: report
            .evaluation
            .as_ref()
            .map(evaluation)
            .or_else(|| old.progress.as_ref().and_then(|old| old.evaluation.clone())),
        time: old.progress.as_ref().and_then(|old| old.time.clone()),
    };
    let engines = old.inference.as_ref().map(|old| &old.engines);
    if old.progress.as_ref() != Some(&new) || engines != Some(&inference.engines) {
        new.time = Some(Time(now));
        // It changes all the time: it alone is no reason to write the status.
        new.queued_requests = report.requests.map(|requests| requests.queued);
    }
    Some(new)
}

fn evaluation(metrics: &EvaluationMetrics) -> EvaluationStatus {
    EvaluationStatus {
        step: metrics.step,
        sampled: metrics.sampled,
        greedy: metrics.greedy,
        loss: metrics.loss,
        suites: metrics.suites.iter().map(suite).collect(),
    }
}

fn suite((name, metrics): (&String, &EvaluationMetrics)) -> SuiteStatus {
    SuiteStatus {
        name: name.clone(),
        step: metrics.step,
        sampled: metrics.sampled,
        greedy: metrics.greedy,
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::status::{RequestCounts, StepMetrics};

    use super::*;
    use crate::decide::test_support::{at, report};

    #[test]
    fn the_queue_of_requests_changes_with_other_numbers_only() {
        let of = |old: Option<Progress>, step, queued| {
            let requests = Some(RequestCounts { running: 1, queued });
            let report = CoordinatorStatus { step, requests, ..report() };
            let old = RLJobStatus { progress: old, ..RLJobStatus::default() };
            progress(&old, Some(&report), &InferenceStatus::default(), at(1)).unwrap()
        };
        let first = of(None, 1, 7);
        assert_eq!(first.queued_requests, Some(7));
        let old = RLJobStatus {
            progress: Some(first.clone()),
            inference: Some(InferenceStatus::default()),
            ..RLJobStatus::default()
        };
        let requests = Some(RequestCounts { running: 1, queued: 9 });
        let busy = CoordinatorStatus { step: 1, requests, ..report() };
        let same = progress(&old, Some(&busy), &InferenceStatus::default(), at(2));
        assert_eq!(same, Some(first.clone()));
        assert_eq!(of(Some(first), 2, 0).queued_requests, Some(0));
    }

    #[test]
    fn progress_has_the_numbers_of_the_newest_step() {
        let of = |rejected: f64| {
            let scalars =
                [("reward", 0.5), ("tokensPerSecond", 9.0), ("rejectedSamples", rejected)];
            let metrics = Some(StepMetrics::with_scalars(3, scalars));
            let report = CoordinatorStatus { step: 3, total_steps: 8, metrics, ..report() };
            progress(&RLJobStatus::default(), Some(&report), &InferenceStatus::default(), at(1))
        };
        let expected = Progress {
            step: 3,
            total_steps: 8,
            reward: Some(0.5),
            tokens_per_second: Some(9.0),
            rejected_samples: Some(12),
            time: Some(Time(at(1))),
            ..Progress::default()
        };
        assert_eq!(of(12.0), Some(expected.clone()));
        assert_eq!(of(0.0), Some(Progress { rejected_samples: None, ..expected }));
    }

    #[test]
    fn progress_begins_when_the_number_of_steps_is_known() {
        let engines = InferenceStatus::default();
        let of = |total_steps: u32| {
            let report = CoordinatorStatus { total_steps, ..report() };
            let new = progress(&RLJobStatus::default(), Some(&report), &engines, at(0));
            new.map(|progress| progress.total_steps)
        };
        assert_eq!((of(UNKNOWN_STEPS), of(12)), (None, Some(12)));
    }

    #[test]
    fn the_newest_evaluation_is_kept_while_a_coordinator_reports_none() {
        let metrics: EvaluationMetrics = serde_json::from_value(serde_json::json!({
            "step": 2, "prompts": 8, "seconds": 1.0, "sampled": 0.5, "greedy": 0.625,
            "suites": {"gsm8k": {"step": 1, "prompts": 4, "seconds": 1.0, "greedy": 0.25}},
        }))
        .unwrap();
        let expected = Some(EvaluationStatus {
            step: 2,
            sampled: Some(0.5),
            greedy: Some(0.625),
            loss: None,
            suites: vec![SuiteStatus {
                name: "gsm8k".to_owned(),
                step: 1,
                sampled: None,
                greedy: Some(0.25),
            }],
        });
        let engines = InferenceStatus::default();
        let evaluated = CoordinatorStatus { evaluation: Some(metrics), ..report() };
        let old = RLJobStatus {
            progress: progress(&RLJobStatus::default(), Some(&evaluated), &engines, at(0)),
            ..RLJobStatus::default()
        };
        let of = |progress: Option<Progress>| progress.unwrap().evaluation;
        assert_eq!(of(old.progress.clone()), expected);
        assert_eq!(of(progress(&old, Some(&report()), &engines, at(1))), expected);
    }
}
