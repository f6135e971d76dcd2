//! Tiles with headline numbers: first → last. Pure.

use std::fmt::Write;

use rljob_protocol::metrics::{self, EvaluationMetrics, StepMetrics};

use super::html::escape;
use crate::local::lines::with_error;

/// A mean and its standard error.
type Measured = Option<(f64, Option<f64>)>;

/// Renders the tiles; empty before the first step.
pub fn render(steps: &[StepMetrics], evaluations: &[EvaluationMetrics]) -> String {
    let tiles = tiles(steps, evaluations);
    if tiles.is_empty() {
        return String::new();
    }
    let mut out = "<section class=\"tiles\">\n".to_owned();
    for (name, value) in tiles {
        let _ = writeln!(
            out,
            "<div><span>{}</span><strong>{}</strong></div>",
            escape(name),
            escape(&value)
        );
    }
    out.push_str("</section>\n");
    out
}

fn tiles(steps: &[StepMetrics], evaluations: &[EvaluationMetrics]) -> Vec<(&'static str, String)> {
    let mut tiles = Vec::new();
    if let (Some(first), Some(last)) = (evaluations.first(), evaluations.last()) {
        let of = |value: fn(&EvaluationMetrics) -> Measured| {
            let text = |metrics| value(metrics).map(|(mean, error)| with_error(mean, error));
            Some(format!("{} → {}", text(first)?, text(last)?))
        };
        let values = [
            ("Accuracy, sampled", of(|m| Some((m.sampled?, m.sampled_standard_error)))),
            ("Accuracy, greedy", of(|m| Some((m.greedy?, m.greedy_standard_error)))),
            ("Validation loss", of(|m| Some((m.loss?, None)))),
        ];
        tiles.extend(values.into_iter().filter_map(|(name, value)| Some((name, value?))));
        if let Some(rejected) = last.rejected.filter(|rejected| *rejected > 0) {
            tiles.push(("Rejected in the last evaluation", format!("{rejected} completions")));
        }
    }
    let rewards: Vec<f64> = steps.iter().filter_map(|step| step.get(metrics::REWARD)).collect();
    if let (Some(first), Some(last)) = (rewards.first(), rewards.last()) {
        tiles.push(("Reward", change(*first, *last)));
    } else if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
        let loss = |step: &StepMetrics| step.scalars.get_or_zero(metrics::LOSS);
        tiles.push(("Loss", change(loss(first), loss(last))));
    }
    if let Some(speed) =
        median(steps.iter().filter_map(|step| step.get(metrics::TOKENS_PER_SECOND)).collect())
    {
        tiles.push(("Speed, median", format!("{speed:.0} tok/s")));
    }
    if let Some(attempt) = steps.last().map(|step| step.attempt).filter(|attempt| *attempt > 0) {
        // Numbered from 0. Resuming an interrupted run starts an attempt, too.
        tiles.push(("Attempts", (attempt + 1).to_string()));
    }
    tiles
}

fn change(first: f64, last: f64) -> String {
    format!("{first:.3} → {last:.3}")
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
