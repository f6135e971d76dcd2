//! Tiles with headline numbers: first → last. Pure.

use std::fmt::Write;

use rljob_protocol::metrics::{self, EvaluationMetrics, PAIR_ACCURACY, StepMetrics};

use super::html::escape;
use crate::local::lines::ends;

/// A headline number.
struct Tile {
    name: &'static str,
    value: String,
    /// Small text below the value.
    detail: Option<String>,
}

/// A mean and its standard error.
type Measured = Option<(f64, Option<f64>)>;

impl Tile {
    fn new(name: &'static str, value: String) -> Self {
        Self { name, value, detail: None }
    }

    /// First and last mean, and their standard errors if both are known.
    fn of_means(name: &'static str, first: Measured, last: Measured) -> Option<Self> {
        let ((first, first_error), (last, last_error)) = (first?, last?);
        let detail = first_error
            .zip(last_error)
            .map(|(first, last)| format!("± {first:.3} → ± {last:.3} standard error"));
        Some(Self { name, value: change(first, last), detail })
    }
}

/// Renders the tiles; empty before the first step.
pub fn render(steps: &[StepMetrics], evaluations: &[EvaluationMetrics]) -> String {
    let tiles = tiles(steps, evaluations);
    if tiles.is_empty() {
        return String::new();
    }
    let mut out = "<section class=\"tiles\">\n".to_owned();
    for Tile { name, value, detail } in tiles {
        let (name, value) = (escape(name), escape(&value));
        let detail = detail.map(|text| format!("<small>{}</small>", escape(&text)));
        let detail = detail.unwrap_or_default();
        let _ = writeln!(out, "<div><span>{name}</span><strong>{value}</strong>{detail}</div>");
    }
    out.push_str("</section>\n");
    out
}

fn tiles(steps: &[StepMetrics], evaluations: &[EvaluationMetrics]) -> Vec<Tile> {
    let mut tiles = Vec::new();
    if let (Some(first), Some(last)) = (evaluations.first(), evaluations.last()) {
        let tile = |name, value: fn(&EvaluationMetrics) -> Measured| {
            Tile::of_means(name, value(first), value(last))
        };
        let measured = [
            tile("Accuracy, sampled", |m| Some((m.sampled?, m.sampled_standard_error))),
            tile("Accuracy, greedy", |m| Some((m.greedy?, m.greedy_standard_error))),
            tile("Validation loss", |m| Some((m.loss?, None))),
            tile("Pair accuracy", |m| Some((m.scalars.get(PAIR_ACCURACY)?, None))),
        ];
        tiles.extend(measured.into_iter().flatten());
        if let Some(rejected) = last.rejected.filter(|rejected| *rejected > 0) {
            tiles.push(Tile::new(
                "Rejected in the last evaluation",
                format!("{rejected} completions"),
            ));
        }
    }
    if let Some((first, last)) = ends(steps, metrics::REWARD) {
        tiles.push(Tile::new("Reward", change(first, last)));
    } else if let Some((first, last)) = ends(steps, metrics::LOSS) {
        tiles.push(Tile::new("Loss", change(first, last)));
    }
    if let Some(speed) =
        median(steps.iter().filter_map(|step| step.get(metrics::TOKENS_PER_SECOND)).collect())
    {
        tiles.push(Tile::new("Speed, median", format!("{speed:.0} tok/s")));
    }
    if let Some(attempt) = steps.last().map(|step| step.attempt).filter(|attempt| *attempt > 0) {
        // Numbered from 0. Resuming an interrupted run starts an attempt, too.
        tiles.push(Tile::new("Attempts", attempt.saturating_add(1).to_string()));
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
