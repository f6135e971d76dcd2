//! Terminal output of a run, as text. Pure.

use std::fmt::Write;

use rljob_protocol::evaluation::CategoryMetrics;
use rljob_protocol::metrics::{self, EvaluationMetrics, Scalars, StepMetrics};
use rljob_protocol::status::{CoordinatorStatus, Phase};

/// Line of a step: step, reward, loss, accuracy and margin of pairs, KL, entropy, clip fraction,
/// mismatch mean/max, speed.
/// Metrics that the algorithm lacks are omitted.
pub fn step(step: &StepMetrics, total_steps: u32) -> String {
    let scalars = &step.scalars;
    let mut line = counter("step", step.step, total_steps);
    if let Some(reward) = step.get(metrics::REWARD) {
        push(&mut line, "reward", &format!("{reward:.3}"));
    }
    let components: Vec<_> = scalars.reward_components().collect();
    if components.len() > 1 {
        for (name, mean) in components {
            push(&mut line, name, &format!("{mean:.3}"));
        }
    }
    push(&mut line, "loss", &format!("{:>8}", significant(scalars.get_or_zero(metrics::LOSS))));
    push_pairs(&mut line, scalars);
    if let Some(kl) = step.get(metrics::KL) {
        push(&mut line, "kl", &format!("{kl:.1e}"));
    }
    if let Some(entropy) = step.get(metrics::ENTROPY) {
        push(&mut line, "entropy", &format!("{entropy:.3}"));
    }
    if let Some(clip_fraction) = step.get(metrics::CLIP_FRACTION) {
        push(&mut line, "clip", &format!("{clip_fraction:.3}"));
    }
    let mismatch = step.get(metrics::MISMATCH_MEAN).zip(step.get(metrics::MISMATCH_MAX));
    if let Some((mean, max)) = mismatch {
        push(&mut line, "mismatch", &format!("{mean:.1e}/{max:.1e}"));
    }
    let _ = write!(line, "  {:.0} tok/s", scalars.get_or_zero(metrics::TOKENS_PER_SECOND));
    let skipped = scalars.get_or_zero(metrics::SKIPPED);
    if skipped > 0.0 {
        let _ = write!(line, "  {skipped} updates skipped: loss or gradient not finite");
    }
    line
}

/// Lines of an evaluation, one for each suite.
pub fn evaluation(metrics: &EvaluationMetrics, total_steps: u32) -> Vec<String> {
    let suites = metrics.by_suite().into_iter();
    suites.map(|(suite, own)| suite_line(suite, own, total_steps)).collect()
}

fn suite_line(suite: Option<&str>, metrics: &EvaluationMetrics, total_steps: u32) -> String {
    let mut line = counter("eval", metrics.step, total_steps);
    if let Some(suite) = suite {
        let _ = write!(line, "  {suite}");
    }
    if let (Some(sampled), Some(greedy)) = (metrics.sampled, metrics.greedy) {
        let (sampled, greedy) = (
            with_error(sampled, metrics.sampled_standard_error),
            with_error(greedy, metrics.greedy_standard_error),
        );
        let name = accuracy_name(sampled_and_greedy(metrics));
        push(&mut line, name, &format!("{sampled} sampled  {greedy} greedy"));
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

/// Means of the sampled and of the greedy completions.
fn sampled_and_greedy(metrics: &EvaluationMetrics) -> impl Iterator<Item = f64> {
    [metrics.sampled, metrics.greedy].into_iter().flatten()
}

/// Name of mean rewards: those outside 0 to 1 are no shares of correct completions.
fn accuracy_name(means: impl IntoIterator<Item = f64>) -> &'static str {
    if means.into_iter().all(|mean| (0.0..=1.0).contains(&mean)) { "accuracy" } else { "reward" }
}

/// Adds accuracy and margin of pairs, if the algorithm learns from them.
fn push_pairs(line: &mut String, scalars: &Scalars) {
    let names = [("pair accuracy", metrics::PAIR_ACCURACY), ("margin", metrics::PAIR_MARGIN)];
    for (label, name) in names {
        if let Some(value) = scalars.get(name) {
            push(line, label, &format!("{value:.3}"));
        }
    }
}

/// A mean with its standard error.
pub fn with_error(mean: f64, standard_error: Option<f64>) -> String {
    match standard_error {
        Some(error) => format!("{mean:.3} ± {error:.3}"),
        None => format!("{mean:.3}"),
    }
}

/// Current activity of the run.
pub fn phase(status: Option<&CoordinatorStatus>) -> String {
    let Some(status) = status else { return "waiting for the coordinator".to_owned() };
    match status.phase {
        Phase::Starting => {
            status.download.as_ref().map_or("starting".to_owned(), ToString::to_string)
        }
        Phase::Running => status
            .metrics
            .as_ref()
            .and_then(|metrics| metrics.get(metrics::REWARD))
            .map_or("running".to_owned(), |reward| format!("reward {reward:.3}")),
        Phase::Restarting => format!(
            "restarting the learners (attempt {}, {} counted)",
            status.attempt, status.restarts
        ),
        Phase::Draining => "draining".to_owned(),
        Phase::Drained => "drained".to_owned(),
        Phase::Finished => "finished".to_owned(),
        Phase::Failed => "failed".to_owned(),
    }
}

/// Means of a scalar over the first and over the last tenth of the steps, at most ten: a single
/// step's batch is too small to compare.
pub fn ends(steps: &[StepMetrics], name: &str) -> Option<(f64, f64)> {
    let values: Vec<f64> = steps.iter().filter_map(|step| step.get(name)).collect();
    let count = (values.len() / 10).clamp(1, 10);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let first = values.get(..count)?;
    let last = values.get(values.len().saturating_sub(count)..)?;
    Some((mean(first), mean(last)))
}

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
    push_evaluations(&mut line, evaluations);
    let _ = write!(line, ", {seconds:.0} s");
    line
}

/// Adds the first and the last results of each suite.
fn push_evaluations(line: &mut String, evaluations: &[EvaluationMetrics]) {
    let Some(newest) = newest_by_suite(evaluations) else { return };
    for (suite, last) in newest.by_suite() {
        let mut all = evaluations.iter().flat_map(EvaluationMetrics::by_suite);
        let first = all.find(|(name, _)| *name == suite).map_or(last, |(_, first)| first);
        if let (Some(sampled), Some(greedy)) =
            (first.sampled.zip(last.sampled), first.greedy.zip(last.greedy))
        {
            let means = sampled_and_greedy(first).chain(sampled_and_greedy(last));
            let name = suite.unwrap_or_else(|| match accuracy_name(means) {
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

/// The text as one line of about 600 characters. Its beginning names the process, and the cause is
/// there or at the end of a log.
pub fn one_line(text: &str) -> String {
    const START: usize = 300;
    const END: usize = 300;
    let line =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" | ");
    let length = line.chars().count();
    if length <= START + END {
        return line;
    }
    let start: String = line.chars().take(START).collect();
    let end: String = line.chars().skip(length.saturating_sub(END)).collect();
    format!("{start} … {end}")
}

fn counter(what: &str, step: u32, total: u32) -> String {
    let width = total.to_string().len();
    format!("{what} {step:>width$}/{total}")
}

fn push(line: &mut String, name: &str, value: &str) {
    let _ = write!(line, "  {name} {value}");
}

fn push_change(line: &mut String, name: &str, first: f64, last: f64) {
    let _ = write!(line, ", {name} {first:.3} -> {last:.3}");
}

/// Four decimals; scientific notation for very small and very large values.
fn significant(value: f64) -> String {
    if value == 0.0 || (value.abs() >= 1e-3 && value.abs() < 1e5) {
        format!("{value:.4}")
    } else {
        format!("{value:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grpo() -> StepMetrics {
        StepMetrics::with_scalars(
            7,
            [
                (metrics::REWARD, 0.5),
                (metrics::LOSS, -0.000_012),
                (metrics::KL, 0.000_34),
                (metrics::ENTROPY, 0.845),
                (metrics::CLIP_FRACTION, 0.012),
                (metrics::MISMATCH_MEAN, 1.2e-7),
                (metrics::MISMATCH_MAX, 3.4e-6),
                (metrics::TOKENS_PER_SECOND, 1234.5),
            ],
        )
    }

    #[test]
    fn step_line_omits_missing_metrics() {
        let line = "step  7/30  reward 0.500  loss  -1.2e-5  kl 3.4e-4  entropy 0.845  clip 0.012  \
            mismatch 1.2e-7/3.4e-6  1234 tok/s";
        assert_eq!(step(&grpo(), 30), line);
        let sft = StepMetrics::with_scalars(
            300,
            [
                (metrics::LOSS, 1.25),
                (metrics::ENTROPY, 0.5),
                (metrics::TOKENS_PER_SECOND, 9.0),
                (metrics::SKIPPED, 1.0),
            ],
        );
        assert_eq!(
            step(&sft, 300),
            "step 300/300  loss   1.2500  entropy 0.500  9 tok/s  1 updates skipped: loss or \
                gradient not finite"
        );
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
            evaluation(&metrics, 30),
            ["eval  0/30  accuracy 0.375 sampled  0.900 greedy  (256 prompts, 1.2 s)"]
        );
        let both = EvaluationMetrics { loss: Some(2.5), ..metrics.clone() };
        assert_eq!(
            evaluation(&both, 30),
            ["eval  0/30  accuracy 0.375 sampled  0.900 greedy  loss 2.5000  (256 prompts, 1.2 s)"]
        );
        let loss = EvaluationMetrics { sampled: None, greedy: None, ..both };
        assert_eq!(evaluation(&loss, 30), ["eval  0/30  loss 2.5000  (256 prompts, 1.2 s)"]);
        let of_pairs = [(metrics::PAIR_ACCURACY, 0.75), (metrics::PAIR_MARGIN, -1.25)];
        let pairs = EvaluationMetrics { scalars: of_pairs.into_iter().collect(), ..loss };
        assert_eq!(
            evaluation(&pairs, 30),
            ["eval  0/30  loss 2.5000  pair accuracy 0.750  margin -1.250  (256 prompts, 1.2 s)"]
        );
    }

    #[test]
    fn suites_have_a_line_each_and_mean_rewards_outside_0_to_1_are_no_accuracy() {
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
        assert_eq!(evaluation(&evaluations[0], 30), expected);
        let expected = "sums: 0 steps, code 0.000 (greedy 0.500), math -0.500 -> 0.250 (greedy \
            0.500 -> 0.500), 1 s";
        assert_eq!(summary("sums", &[], &evaluations, 1.0), expected);
        let expected = "sums: 0 steps, evaluation reward -1.000 -> 0.000 (greedy 0.500 -> 0.500), \
            1 s";
        assert_eq!(summary("sums", &[], &[of(0, -1.0), of(1, 0.0)], 1.0), expected);
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
        let mut last = StepMetrics { step: 30, ..grpo() };
        last.scalars.set(metrics::REWARD, 0.95);
        let steps = [grpo(), last];
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
    fn one_line_joins_lines() {
        assert_eq!(one_line("exit code 1:\n  out of memory\n\n"), "exit code 1: | out of memory");
        let line = one_line(&format!("trainer-0 exited: {} no space left", "é".repeat(700)));
        assert_eq!(line.chars().count(), 603);
        assert!(line.starts_with("trainer-0 exited") && line.ends_with("no space left"), "{line}");
    }
}
