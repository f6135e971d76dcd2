//! Terminal output of a run, as text. Pure.

use std::fmt::Write;

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

/// Line of an evaluation.
pub fn evaluation(metrics: &EvaluationMetrics, total_steps: u32) -> String {
    let mut line = counter("eval", metrics.step, total_steps);
    if let (Some(sampled), Some(greedy)) = (metrics.sampled, metrics.greedy) {
        let (sampled, greedy) = (
            with_error(sampled, metrics.sampled_standard_error),
            with_error(greedy, metrics.greedy_standard_error),
        );
        push(&mut line, "accuracy", &format!("{sampled} sampled  {greedy} greedy"));
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
            "eval  0/30  accuracy 0.375 sampled  0.900 greedy  (256 prompts, 1.2 s)"
        );
        let both = EvaluationMetrics { loss: Some(2.5), ..metrics.clone() };
        assert_eq!(
            evaluation(&both, 30),
            "eval  0/30  accuracy 0.375 sampled  0.900 greedy  loss 2.5000  (256 prompts, 1.2 s)"
        );
        let loss = EvaluationMetrics { sampled: None, greedy: None, ..both };
        assert_eq!(evaluation(&loss, 30), "eval  0/30  loss 2.5000  (256 prompts, 1.2 s)");
        let of_pairs = [(metrics::PAIR_ACCURACY, 0.75), (metrics::PAIR_MARGIN, -1.25)];
        let pairs = EvaluationMetrics { scalars: of_pairs.into_iter().collect(), ..loss };
        assert_eq!(
            evaluation(&pairs, 30),
            "eval  0/30  loss 2.5000  pair accuracy 0.750  margin -1.250  (256 prompts, 1.2 s)"
        );
    }

    #[test]
    fn one_line_joins_lines() {
        assert_eq!(one_line("exit code 1:\n  out of memory\n\n"), "exit code 1: | out of memory");
        let line = one_line(&format!("trainer-0 exited: {} no space left", "é".repeat(700)));
        assert_eq!(line.chars().count(), 603);
        assert!(line.starts_with("trainer-0 exited") && line.ends_with("no space left"), "{line}");
    }
}
