//! Terminal output of evaluations and of finished runs, as text. Pure.

use std::fmt::Write;

use rljob_crds::RLJobSpec;
use rljob_dashboard::AcceptedChanges;
use rljob_protocol::evaluation::CategoryMetrics;
use rljob_protocol::metrics::{self, EvaluationMetrics, StepMetrics};

use super::lines::{counter, ends, push, push_pairs, significant, with_error};
use super::measure::measure;

/// Lines of an evaluation of a job, one for each suite.
pub fn evaluation(metrics: &EvaluationMetrics, total_steps: u32, spec: &RLJobSpec) -> Vec<String> {
    let suites = metrics.by_suite().into_iter();
    let line = |(suite, own)| suite_line(suite, own, total_steps, measure(spec, suite));
    suites.map(line).collect()
}

fn suite_line(
    suite: Option<&str>,
    metrics: &EvaluationMetrics,
    total_steps: u32,
    measure: &str,
) -> String {
    let mut line = counter("eval", metrics.step, total_steps);
    if let Some(suite) = suite {
        let _ = write!(line, "  {suite}");
    }
    if let (Some(sampled), Some(greedy)) = (metrics.sampled, metrics.greedy) {
        let (sampled, greedy) = (
            with_error(sampled, metrics.sampled_standard_error),
            with_error(greedy, metrics.greedy_standard_error),
        );
        push(&mut line, measure, &format!("{sampled} sampled  {greedy} greedy"));
    }
    if let Some(loss) = metrics.loss {
        push(&mut line, "loss", &significant(loss));
    }
    push_pairs(&mut line, &metrics.scalars);
    let _ = write!(line, "  ({} prompts, {:.1} s)", metrics.prompts, metrics.seconds);
    if let Some(rejected) = metrics.rejected.filter(|rejected| *rejected > 0) {
        let _ = write!(line, "  {rejected} completions rejected by a verifier");
    }
    line
}

/// Last line of a finished or interrupted job, for example `sums: 30 steps, reward 0.41 -> 0.95,
/// accuracy 0.38 -> 0.93 (greedy 0.97 -> 0.98), 84 s`.
pub fn summary(
    name: &str,
    steps: &[StepMetrics],
    evaluations: &[EvaluationMetrics],
    seconds: f64,
    spec: &RLJobSpec,
) -> String {
    let done = steps.last().map_or(0, |last| last.step);
    let mut line = match (done, evaluations) {
        (0, [only]) if !spec.algorithm.has_learners() => {
            format!("{name}: evaluated {} prompts", only.prompts)
        }
        _ => format!("{name}: {done} steps"),
    };
    if let Some((first, last)) = ends(steps, metrics::REWARD) {
        push_change(&mut line, "reward", first, last);
    } else if let Some((first, last)) = ends(steps, metrics::LOSS) {
        push_change(&mut line, "loss", first, last);
    }
    push_evaluations(&mut line, evaluations, spec);
    let rejected = steps.iter().filter_map(|step| step.get(metrics::REJECTED_SAMPLES)).sum::<f64>();
    if rejected > 0.0 {
        let _ = write!(line, ", {rejected} samples rejected");
    }
    let _ = write!(line, ", {seconds:.0} s");
    line
}

/// Line about changes that a start of the run accepted.
pub fn changes(name: &str, accepted: &AcceptedChanges) -> String {
    let AcceptedChanges { step, fields } = accepted;
    format!("{name}: since step {step} with accepted changes of {}", fields.join(", "))
}

/// Adds the first and the last results of each suite.
fn push_evaluations(line: &mut String, evaluations: &[EvaluationMetrics], spec: &RLJobSpec) {
    let Some(newest) = newest_by_suite(evaluations) else { return };
    for (suite, last) in newest.by_suite() {
        let mut all = evaluations.iter().flat_map(EvaluationMetrics::by_suite);
        let first = all.find(|(name, _)| *name == suite).map_or(last, |(_, first)| first);
        if let (Some(sampled), Some(greedy)) =
            (first.sampled.zip(last.sampled), first.greedy.zip(last.greedy))
        {
            let name = suite.unwrap_or_else(|| match measure(spec, None) {
                "reward" => "evaluation reward",
                name => name,
            });
            if first.step < last.step {
                push_change(line, name, sampled.0, sampled.1);
                let _ = write!(line, " (greedy {:.3} -> {:.3})", greedy.0, greedy.1);
            } else {
                let _ = write!(line, ", {name} {:.3} (greedy {:.3})", sampled.1, greedy.1);
            }
        }
    }
    let first = evaluations.first().and_then(|first| first.loss);
    if let Some((first, last)) = first.zip(newest.loss) {
        push_change(line, "validation loss", first, last);
    }
}

/// The last evaluation, with the newest results of suites that it lacks.
pub fn newest_by_suite(evaluations: &[EvaluationMetrics]) -> Option<EvaluationMetrics> {
    evaluations.iter().fold(None, |newest, own| Some(own.clone().after(newest.as_ref())))
}

/// Lines with the results of an evaluation by category, aligned; those of suites are named
/// `SUITE/CATEGORY`.
pub fn categories(metrics: &EvaluationMetrics) -> Vec<String> {
    let mut categories = Vec::new();
    for (suite, own) in metrics.by_suite() {
        let name = |name: &String| suite.map_or(name.clone(), |suite| format!("{suite}/{name}"));
        categories.extend(own.categories.iter().map(|(own, metrics)| (name(own), metrics)));
    }
    let width = categories.iter().map(|(name, _)| name.chars().count()).max();
    let width = width.unwrap_or_default();
    let line = |(name, category): (String, &CategoryMetrics)| {
        let value = |mean: Option<f64>, error| {
            mean.map_or_else(|| "-".to_owned(), |mean| with_error(mean, error))
        };
        let sampled = value(category.sampled, category.sampled_standard_error);
        let greedy = value(category.greedy, category.greedy_standard_error);
        format!(
            "  {name:width$}  {sampled} sampled  {greedy} greedy  ({} prompts)",
            category.prompts
        )
    };
    categories.into_iter().map(line).collect()
}

fn push_change(line: &mut String, name: &str, first: f64, last: f64) {
    let _ = write!(line, ", {name} {first:.3} -> {last:.3}");
}

#[cfg(test)]
mod tests {
    use rljob_crds::algorithm::AlgorithmSpec;
    use rljob_crds::algorithm::evaluation::EvaluationSpec;
    use serde_json::{Value, json};

    use super::*;
    use crate::validate::test_support::with_spec;

    /// A job whose reward is a verdict.
    fn spec() -> RLJobSpec {
        with_rewards(&json!([{"name": "correct", "math": {}}]), &json!([]))
    }

    fn with_rewards(rewards: &Value, suites: &Value) -> RLJobSpec {
        let mut evaluation = json!({"prompt": "{{q}}", "answer": "a", "suites": suites});
        if suites == &json!([]) {
            evaluation["path"] = json!("/test.jsonl");
        }
        let train = json!({"path": "/train.jsonl", "prompt": "{{q}}", "answer": "a"});
        let dataset = json!({"train": train, "evaluation": evaluation});
        with_spec(&json!({"rewards": rewards, "dataset": dataset})).spec.clone()
    }

    #[test]
    fn evaluation_line_contains_accuracy_and_loss() {
        let metrics = EvaluationMetrics {
            step: 0,
            prompts: 256,
            sampled: Some(0.375),
            greedy: Some(0.9),
            seconds: 1.25,
            ..Default::default()
        };
        assert_eq!(
            evaluation(&metrics, 30, &spec()),
            ["eval  0/30  accuracy 0.375 sampled  0.900 greedy  (256 prompts, 1.2 s)"]
        );
        let both = EvaluationMetrics { loss: Some(2.5), ..metrics.clone() };
        assert_eq!(
            evaluation(&both, 30, &spec()),
            ["eval  0/30  accuracy 0.375 sampled  0.900 greedy  loss 2.5000  (256 prompts, 1.2 s)"]
        );
        let loss = EvaluationMetrics { sampled: None, greedy: None, ..both };
        assert_eq!(
            evaluation(&loss, 30, &spec()),
            ["eval  0/30  loss 2.5000  (256 prompts, 1.2 s)"]
        );
        let of_pairs = [(metrics::PAIR_ACCURACY, 0.75), (metrics::PAIR_MARGIN, -1.25)];
        let pairs = EvaluationMetrics { scalars: of_pairs.into_iter().collect(), ..loss };
        assert_eq!(
            evaluation(&pairs, 30, &spec()),
            ["eval  0/30  loss 2.5000  pair accuracy 0.750  margin -1.250  (256 prompts, 1.2 s)"]
        );
    }

    #[test]
    fn suites_have_a_line_each_and_only_verdicts_are_an_accuracy() {
        let judge = json!({"name": "judge", "http": {"url": "http://judge"}});
        let rewards = json!([{"name": "tests", "code": {}}, judge]);
        let path = "/test.jsonl";
        let suite = |name: &str, reward: &str| -> Value {
            json!({"name": name, "path": path, "rewards": [reward]})
        };
        let suites = json!([suite("code", "tests"), suite("math", "judge")]);
        let of_suites = with_rewards(&rewards, &suites);
        let scored = with_rewards(&json!([judge]), &json!([]));
        let of = |step, sampled| EvaluationMetrics {
            step,
            prompts: 8,
            sampled: Some(sampled),
            greedy: Some(0.5),
            seconds: 1.0,
            ..EvaluationMetrics::default()
        };
        let both = |step, suites: &[(&str, f64)]| EvaluationMetrics {
            step,
            suites: suites.iter().map(|(name, own)| ((*name).to_owned(), of(step, *own))).collect(),
            ..EvaluationMetrics::default()
        };
        let evaluations = [both(0, &[("code", 0.0), ("math", -0.5)]), both(2, &[("math", 0.25)])];
        let expected = [
            "eval  0/30  code  accuracy 0.000 sampled  0.500 greedy  (8 prompts, 1.0 s)",
            "eval  0/30  math  reward -0.500 sampled  0.500 greedy  (8 prompts, 1.0 s)",
        ];
        assert_eq!(evaluation(&evaluations[0], 30, &of_suites), expected);
        let expected = "sums: 0 steps, code 0.000 (greedy 0.500), math -0.500 -> 0.250 (greedy \
            0.500 -> 0.500), 1 s";
        assert_eq!(summary("sums", &[], &evaluations, 1.0, &of_suites), expected);
        let expected = "sums: 0 steps, evaluation reward -1.000 -> 0.000 (greedy 0.500 -> 0.500), \
            1 s";
        assert_eq!(summary("sums", &[], &[of(0, -1.0), of(1, 0.0)], 1.0, &scored), expected);
    }

    #[test]
    fn lines_of_categories_are_aligned() {
        let category = |prompts, greedy| CategoryMetrics {
            prompts,
            sampled: Some(0.5),
            greedy,
            sampled_standard_error: Some(0.25),
            ..CategoryMetrics::default()
        };
        let categories = [("algebra", 12, Some(0.75)), ("sets", 1, None)];
        let categories =
            categories.map(|(name, prompts, greedy)| (name.to_owned(), category(prompts, greedy)));
        let metrics =
            EvaluationMetrics { categories: categories.into(), ..EvaluationMetrics::default() };
        let expected = [
            "  algebra  0.500 ± 0.250 sampled  0.750 greedy  (12 prompts)",
            "  sets     0.500 ± 0.250 sampled  - greedy  (1 prompts)",
        ];
        assert_eq!(super::categories(&metrics), expected);
        assert!(super::categories(&EvaluationMetrics::default()).is_empty());
    }

    #[test]
    fn summary_shows_first_and_last_values() {
        let steps = [(7, 0.5), (30, 0.95)]
            .map(|(step, reward)| StepMetrics::with_scalars(step, [(metrics::REWARD, reward)]));
        let evaluations = [(0, 0.375), (30, 0.9375)].map(|(step, sampled)| EvaluationMetrics {
            step,
            sampled: Some(sampled),
            greedy: Some(0.5),
            ..Default::default()
        });
        let expected = "sums: 30 steps, reward 0.500 -> 0.950, accuracy 0.375 -> 0.938 (greedy \
            0.500 -> 0.500), 84 s";
        assert_eq!(summary("sums", &steps, &evaluations, 84.2, &spec()), expected);
        let steps = [3.0, 0.0, 4.0]
            .map(|rejected| StepMetrics::with_scalars(1, [(metrics::REJECTED_SAMPLES, rejected)]));
        let expected = "sums: 1 steps, 7 samples rejected, 1 s";
        assert_eq!(summary("sums", &steps, &[], 1.0, &spec()), expected);
        let losses = [2.75, 0.5]
            .map(|loss| EvaluationMetrics { loss: Some(loss), ..EvaluationMetrics::default() });
        assert_eq!(
            summary("sums", &[], &losses, 1.0, &spec()),
            "sums: 0 steps, validation loss 2.750 -> 0.500, 1 s"
        );
        assert_eq!(summary("sums", &[], &[], 0.0, &spec()), "sums: 0 steps, 0 s");
        let result = "accuracy 0.375 (greedy 0.500), 2 s";
        let line = |spec: &RLJobSpec| summary("sums", &[], &evaluations[..1], 2.0, spec);
        assert_eq!(line(&spec()), format!("sums: 0 steps, {result}"));
        let mut evaluation = spec();
        evaluation.algorithm =
            AlgorithmSpec { evaluation: Some(EvaluationSpec {}), ..AlgorithmSpec::default() };
        assert_eq!(line(&evaluation), format!("sums: evaluated 0 prompts, {result}"));
    }
}
