//! Results of a finished or interrupted run, as text. Pure.

use std::fmt::Write;

use rljob_protocol::evaluation::CategoryMetrics;
use rljob_protocol::metrics::{self, EvaluationMetrics, StepMetrics};

use super::lines::with_error;

/// Last line of a finished or interrupted job, for example `sums: 30 steps, reward 0.41 -> 0.95,
/// accuracy 0.38 -> 0.93 (greedy 0.97 -> 0.98), 84 s`.
pub fn summary(
    name: &str,
    steps: &[StepMetrics],
    evaluations: &[EvaluationMetrics],
    seconds: f64,
) -> String {
    let done = steps.last().map_or(0, |last| last.step);
    let mut line = match (done, evaluations) {
        (0, [only]) => format!("{name}: evaluated {} prompts", only.prompts),
        _ => format!("{name}: {done} steps"),
    };
    if let Some((first, last)) = ends(steps, metrics::REWARD) {
        push_change(&mut line, "reward", first, last);
    } else if let Some((first, last)) = ends(steps, metrics::LOSS) {
        push_change(&mut line, "loss", first, last);
    }
    if let (Some(first), Some(last)) = (evaluations.first(), evaluations.last()) {
        if let (Some(sampled), Some(greedy)) =
            (first.sampled.zip(last.sampled), first.greedy.zip(last.greedy))
        {
            if evaluations.len() > 1 {
                push_change(&mut line, "accuracy", sampled.0, sampled.1);
                let _ = write!(line, " (greedy {:.3} -> {:.3})", greedy.0, greedy.1);
            } else {
                let _ = write!(line, ", accuracy {:.3} (greedy {:.3})", sampled.1, greedy.1);
            }
        }
        if let Some((first, last)) = first.loss.zip(last.loss) {
            push_change(&mut line, "validation loss", first, last);
        }
    }
    let _ = write!(line, ", {seconds:.0} s");
    line
}

/// Means of a scalar over the first and over the last tenth of the steps, at most ten: a single
/// step's batch is too small to compare.
fn ends(steps: &[StepMetrics], name: &str) -> Option<(f64, f64)> {
    let values: Vec<f64> = steps.iter().filter_map(|step| step.get(name)).collect();
    let count = (values.len() / 10).clamp(1, 10);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let first = values.get(..count)?;
    let last = values.get(values.len().saturating_sub(count)..)?;
    Some((mean(first), mean(last)))
}

/// Lines with the results of an evaluation by category, aligned.
pub fn categories(metrics: &EvaluationMetrics) -> Vec<String> {
    let width = metrics.categories.keys().map(|name| name.chars().count()).max();
    let width = width.unwrap_or_default();
    let line = |(name, category): (&String, &CategoryMetrics)| {
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
    metrics.categories.iter().map(line).collect()
}

fn push_change(line: &mut String, name: &str, first: f64, last: f64) {
    let _ = write!(line, ", {name} {first:.3} -> {last:.3}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_means_of_a_tenth_of_the_steps() {
        let steps: Vec<_> = (1..=30)
            .map(|step| StepMetrics::with_scalars(step, [(metrics::REWARD, f64::from(step))]))
            .collect();
        assert_eq!(super::ends(&steps, metrics::REWARD), Some((2.0, 29.0)));
        assert_eq!(super::ends(&steps[..1], metrics::REWARD), Some((1.0, 1.0)));
        assert_eq!(super::ends(&steps, metrics::LOSS), None);
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
        assert_eq!(summary("sums", &steps, &evaluations, 84.2), expected);
        let losses = [2.75, 0.5]
            .map(|loss| EvaluationMetrics { loss: Some(loss), ..EvaluationMetrics::default() });
        assert_eq!(
            summary("sums", &[], &losses, 1.0),
            "sums: 0 steps, validation loss 2.750 -> 0.500, 1 s"
        );
        assert_eq!(summary("sums", &[], &[], 0.0), "sums: 0 steps, 0 s");
        let expected = "sums: evaluated 0 prompts, accuracy 0.375 (greedy 0.500), 2 s";
        assert_eq!(summary("sums", &[], &evaluations[..1], 2.0), expected);
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
}
