//! Terminal output of a run in progress, as text. Pure.

use std::fmt::Write;

use rljob_protocol::metrics::{self, Scalars, StepMetrics};
use rljob_protocol::status::{CoordinatorStatus, Phase, UNKNOWN_STEPS};

/// Line of a step: step, reward, loss, accuracy and margin of pairs, KL of sampler and learner, KL
/// to the reference, entropy, clip fraction, mismatch mean/max, speed, rejected samples. Metrics
/// that the algorithm lacks are omitted.
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
    if let Some(kl) = step.get(metrics::REFERENCE_KL) {
        push(&mut line, "ref-kl", &format!("{kl:.3}"));
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
    let rejected = scalars.get_or_zero(metrics::REJECTED_SAMPLES);
    if rejected > 0.0 {
        let _ = write!(line, "  {rejected} samples rejected");
    }
    let skipped = scalars.get_or_zero(metrics::SKIPPED);
    if skipped > 0.0 {
        let _ = write!(line, "  {skipped} updates skipped: loss or gradient not finite");
    }
    line
}

/// Adds accuracy and margin of pairs, if the algorithm learns from them.
pub(super) fn push_pairs(line: &mut String, scalars: &Scalars) {
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

pub(super) fn counter(what: &str, step: u32, total: u32) -> String {
    if total == UNKNOWN_STEPS {
        return format!("{what} {step}");
    }
    let width = total.to_string().len();
    format!("{what} {step:>width$}/{total}")
}

pub(super) fn push(line: &mut String, name: &str, value: &str) {
    let _ = write!(line, "  {name} {value}");
}

/// Four decimals; scientific notation for very small and very large values.
pub(super) fn significant(value: f64) -> String {
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
        let reference = [
            (metrics::KL, 6e-14),
            (metrics::REFERENCE_KL, 0.054_8),
            (metrics::REJECTED_SAMPLES, 12.0),
        ];
        let line =
            "step  6/30  loss   0.0000  kl 6.0e-14  ref-kl 0.055  0 tok/s  12 samples rejected";
        assert_eq!(step(&StepMetrics::with_scalars(6, reference), 30), line);
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
    fn ends_are_means_of_a_tenth_of_the_steps() {
        let steps: Vec<_> = (1..=30)
            .map(|step| StepMetrics::with_scalars(step, [(metrics::REWARD, f64::from(step))]))
            .collect();
        assert_eq!(super::ends(&steps, metrics::REWARD), Some((2.0, 29.0)));
        assert_eq!(super::ends(&steps[..1], metrics::REWARD), Some((1.0, 1.0)));
        assert_eq!(super::ends(&steps, metrics::LOSS), None);
    }

    #[test]
    fn one_line_joins_lines() {
        assert_eq!(one_line("exit code 1:\n  out of memory\n\n"), "exit code 1: | out of memory");
        let line = one_line(&format!("trainer-0 exited: {} no space left", "é".repeat(700)));
        assert_eq!(line.chars().count(), 603);
        assert!(line.starts_with("trainer-0 exited") && line.ends_with("no space left"), "{line}");
    }
}
