//! `report.html`: results of a run in one file that needs no network. A pure function of the run's
//! records, which are untrusted: all text is escaped.
//!
//! ```text
//!  header (name, outcome), tiles (first → last), charts,
//!  rollouts of the first, middle and last step, spec
//! ```

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rljob_protocol::metrics::{self, EvaluationMetrics, StepMetrics};
use sha2::{Digest as _, Sha256};

use super::records::SampleLine;

mod axis;
mod chart;
mod html;
mod samples;
mod tiles;

pub use samples::{PER_STEP as SAMPLES_PER_STEP, shown_steps};

use axis::Scale;
use chart::{Chart, Series};
use html::escape;

/// Contents of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the job.
    pub name: String,
    pub outcome: Outcome,
    /// The spec with its defaults, as YAML.
    pub spec: String,
    pub total_steps: u32,
    /// By step.
    pub metrics: Vec<StepMetrics>,
    /// By step.
    pub evaluations: Vec<EvaluationMetrics>,
    pub samples: Vec<SampleLine>,
}

/// Outcome of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Finished,
    /// Failed, with this cause.
    Failed(String),
    /// Not ended.
    Running,
    /// Stopped before its last step.
    Interrupted,
}

/// Renders the report as an HTML document.
pub fn render(report: &Report) -> String {
    let sections = [
        header(report),
        tiles::render(&report.metrics, &report.evaluations),
        charts(report),
        samples::render(&report.samples),
        spec(&report.spec),
    ];
    let (style, script) =
        (format!("\n{}", include_str!("style.css")), format!("\n{}", include_str!("readout.js")));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{} · rljob</title>\n<style>{style}</style>\n</head>\n\
         <body>\n<main>\n{}</main>\n<script>{script}</script>\n</body>\n</html>\n",
        security_policy(&style, &script),
        escape(&report.name),
        sections.concat(),
    )
}

/// Content-Security-Policy that allows this style and this script, and nothing else.
fn security_policy(style: &str, script: &str) -> String {
    let hash = |text: &str| format!("'sha256-{}'", BASE64.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        hash(style),
        hash(script),
    )
}

fn header(report: &Report) -> String {
    let done = report.metrics.last().map_or(0, |last| last.step);
    let (class, outcome) = match &report.outcome {
        Outcome::Finished => ("good", "finished".to_owned()),
        Outcome::Failed(_) => ("bad", "failed".to_owned()),
        Outcome::Running => ("open", "running".to_owned()),
        Outcome::Interrupted => ("open", "interrupted".to_owned()),
    };
    let cause = if let Outcome::Failed(cause) = &report.outcome {
        format!("<p class=\"cause\">{}</p>\n", escape(cause))
    } else {
        String::new()
    };
    format!(
        "<header>\n<p class=\"kind\">RLJob</p>\n<h1>{}</h1>\n<p class=\"state\"><span \
            class=\"badge {class}\">{outcome}</span> {done} of {} steps</p>\n{cause}</header>\n",
        escape(&report.name),
        report.total_steps,
    )
}

#[expect(clippy::too_many_lines, reason = "the list of charts")]
fn charts(report: &Report) -> String {
    let steps = |name: &str| {
        report
            .metrics
            .iter()
            .filter_map(|m| Some((f64::from(m.step), m.get(name)?)))
            .collect::<Vec<_>>()
    };
    let evaluations = |value: &dyn Fn(&EvaluationMetrics) -> Option<f64>| {
        report
            .evaluations
            .iter()
            .filter_map(|m| Some((f64::from(m.step), value(m)?)))
            .collect::<Vec<_>>()
    };
    let one = |title, unit, metric| Chart {
        title,
        unit,
        bounds: None,
        scale: Scale::Linear,
        series: vec![Series { name: title.to_owned(), points: steps(metric) }],
    };
    let components = component_names(report);
    let share = Some((0.0, 1.0));
    let reward_components = Chart {
        title: "Reward components",
        unit: "mean of the step's samples, before weights",
        bounds: None,
        scale: Scale::Linear,
        series: components
            .iter()
            .map(|name| Series {
                name: (*name).to_owned(),
                points: steps(&format!("{}{name}", metrics::REWARD_COMPONENT_PREFIX)),
            })
            .collect(),
    };
    let pairs = |title, unit, bounds, name| Chart {
        title,
        unit,
        bounds,
        scale: Scale::Linear,
        series: vec![
            Series { name: "training".to_owned(), points: steps(name) },
            Series { name: "validation".to_owned(), points: evaluations(&|m| m.scalars.get(name)) },
        ],
    };
    let charts = [
        Chart {
            title: "Evaluation accuracy",
            unit: "mean reward of held-out prompts",
            bounds: share,
            scale: Scale::Linear,
            series: vec![
                Series { name: "sampled".to_owned(), points: evaluations(&|m| m.sampled) },
                Series { name: "greedy".to_owned(), points: evaluations(&|m| m.greedy) },
            ],
        },
        Chart { bounds: share, ..one("Reward", "mean of the step's samples", metrics::REWARD) },
        reward_components,
        Chart {
            title: "Loss",
            unit: "per trainable token",
            bounds: None,
            scale: Scale::Linear,
            series: vec![
                Series { name: "training".to_owned(), points: steps(metrics::LOSS) },
                Series { name: "validation".to_owned(), points: evaluations(&|m| m.loss) },
            ],
        },
        pairs("Pair accuracy", "share of pairs in the right order", share, metrics::PAIR_ACCURACY),
        pairs("Margin", "reward of chosen − rejected", None, metrics::PAIR_MARGIN),
        one("Entropy", "nats per token", metrics::ENTROPY),
        one("Gradient norm", "L2, before clipping", metrics::GRADIENT_NORM),
        one("Clip fraction", "share of trainable tokens", metrics::CLIP_FRACTION),
        Chart {
            scale: Scale::Logarithmic,
            ..one("KL", "sampler to learner before the update, k3 per token", metrics::KL)
        },
        Chart {
            title: "Engine–learner mismatch",
            unit: "|Δ log-probability| before the update, nats",
            bounds: None,
            scale: Scale::Logarithmic,
            series: vec![
                Series { name: "mean".to_owned(), points: steps(metrics::MISMATCH_MEAN) },
                Series { name: "max".to_owned(), points: steps(metrics::MISMATCH_MAX) },
            ],
        },
        one(
            "Speed",
            "tokens per second, rollouts and evaluations included",
            metrics::TOKENS_PER_SECOND,
        ),
    ];
    let drawn: String = charts.iter().filter_map(Chart::render).collect();
    if drawn.is_empty() {
        "<p class=\"empty\">No step is done yet.</p>\n".to_owned()
    } else {
        format!("<section class=\"charts\">\n{drawn}</section>\n")
    }
}

/// Names of the rewards' components, if there are several.
fn component_names(report: &Report) -> Vec<&str> {
    let names: BTreeSet<&str> = report
        .metrics
        .iter()
        .flat_map(|step| step.scalars.reward_components().map(|(name, _)| name))
        .collect();
    if names.len() > 1 { names.into_iter().collect() } else { Vec::new() }
}

fn spec(yaml: &str) -> String {
    format!(
        "<section>\n<details>\n<summary>Spec</summary>\n<pre>{}</pre>\n</details>\n</section>\n",
        escape(yaml)
    )
}

#[cfg(test)]
mod tests;
