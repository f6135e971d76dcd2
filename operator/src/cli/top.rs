//! `rljob top`: curves and newest numbers of a local run or an RLJob, drawn again until the run has
//! ended. Without a terminal, they are printed once.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rljob_crds::names::METRICS_FILE;
use rljob_dashboard::records::Tail;
use rljob_protocol::metrics::{self, StepMetrics};
use rljob_protocol::status::UNKNOWN_STEPS;

use super::connection::{Connection, PlaceArgs};
use super::job_view::JobView;
use super::status::{CLEAR, job};
use super::tree::tree;
use crate::local::inspect::{Run, find_one};
use crate::local::{lines, results};
use crate::terminal::printable;

/// Interval of reads.
const POLL: Duration = Duration::from_secs(2);
/// Width of a curve.
const WIDTH: usize = 60;
/// Characters of a curve, lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Curves of a local run: metric and title.
const CURVES: [(&str, &str); 5] = [
    (metrics::REWARD, "reward"),
    (metrics::LOSS, "loss"),
    (metrics::TOKENS_PER_SECOND, "tokens/s"),
    (metrics::ROLLOUT_SECONDS, "rollouts, s"),
    (metrics::TRAIN_SECONDS, "training, s"),
];

/// Title of the curve of requests that wait for an engine.
const QUEUE: &str = "queued";

/// Show curves and the newest numbers of a run until it has ended.
///
/// A local run has the curves of all steps; that of queued requests starts with the command. With
/// `--cluster`, curves start with the command, with the values of the status of the RLJob, which is
/// written at most once a minute; its pods, engines and conditions are shown as by `status`.
/// Without a terminal, the output is printed once.
#[derive(clap::Args, Debug)]
pub struct TopArgs {
    /// The run directory, `RUNS/<namespace>/<name>`, or a folder of one run; with `--cluster`, the
    /// name of an RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: String,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Values by step.
type Curve = BTreeMap<u32, f64>;

/// What is drawn.
struct Frame {
    title: String,
    curves: Vec<(&'static str, Curve)>,
    /// Text below the curves.
    rest: String,
    has_ended: bool,
}

/// Draws to `out`.
///
/// # Errors
/// The run does not exist, or a read fails.
pub async fn top(arguments: &TopArgs, out: &mut impl Write) -> anyhow::Result<()> {
    arguments.place.check()?;
    arguments.place.check_folder(Some(&arguments.target))?;
    let mut source = if arguments.place.cluster {
        let connection = Connection::open(&arguments.place.connection).await?;
        let (name, curves) = (arguments.target.clone(), Vec::new());
        Source::Cluster { connection, name, curves }
    } else {
        let directory = find_one(Path::new(&arguments.target))?;
        let tail = Tail::new(directory.join(METRICS_FILE));
        Source::Local(Local { directory, tail, steps: BTreeMap::new(), queued: Curve::new() })
    };
    let is_terminal = std::io::stdout().is_terminal();
    loop {
        let frame = source.read().await?;
        let clear = if is_terminal { CLEAR } else { "" };
        writeln!(out, "{clear}{}", printable(&text(&frame)))?;
        out.flush()?;
        if !is_terminal || frame.has_ended {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

enum Source {
    Local(Local),
    Cluster { connection: Connection, name: String, curves: Vec<(&'static str, Curve)> },
}

impl Source {
    async fn read(&mut self) -> anyhow::Result<Frame> {
        match self {
            Self::Local(local) => local.read(),
            Self::Cluster { connection, name, curves } => {
                Ok(job_frame(curves, &job(connection, name).await?, Timestamp::now()))
            }
        }
    }
}

/// The frame of a job, whose progress extends the curves. Pure.
fn job_frame(curves: &mut Vec<(&'static str, Curve)>, view: &JobView, now: Timestamp) -> Frame {
    extend(curves, view);
    Frame {
        title: String::new(),
        curves: curves.clone(),
        rest: tree(view, now),
        has_ended: view.completion_time.is_some(),
    }
}

/// Adds the progress of a job to the curves.
fn extend(curves: &mut Vec<(&'static str, Curve)>, view: &JobView) {
    let Some(progress) = &view.progress else { return };
    let values = [
        ("reward", progress.reward),
        ("tokens/s", progress.tokens_per_second),
        (QUEUE, progress.queued_requests.map(f64::from)),
    ];
    for (title, value) in values {
        let Some(value) = value else { continue };
        match curves.iter_mut().find(|(known, _)| *known == title) {
            Some((_, curve)) => drop(curve.insert(progress.step, value)),
            None => curves.push((title, Curve::from([(progress.step, value)]))),
        }
    }
}

/// A run directory.
struct Local {
    directory: PathBuf,
    tail: Tail,
    /// A repeated step replaces the one of an earlier attempt.
    steps: BTreeMap<u32, StepMetrics>,
    /// Queued requests at the end of each step that the command has seen.
    queued: Curve,
}

impl Local {
    fn read(&mut self) -> anyhow::Result<Frame> {
        let run = Run::read(Path::new(&self.directory))?;
        let new: Vec<StepMetrics> = self.tail.read()?;
        self.steps.extend(new.into_iter().map(|step| (step.step, step)));
        let curve = |name: &str| -> Curve {
            let values = self.steps.values();
            values.filter_map(|step| Some((step.step, step.get(name)?))).collect()
        };
        if let Some((step, requests)) =
            run.report.as_ref().and_then(|report| Some((report.step, report.requests?)))
        {
            self.queued.insert(step, requests.queued.into());
        }
        let mut curves: Vec<_> = CURVES.iter().map(|(name, title)| (*title, curve(name))).collect();
        curves.push((QUEUE, self.queued.clone()));
        let total = run.total_steps().unwrap_or(UNKNOWN_STEPS);
        let mut rest: Vec<String> =
            self.steps.values().last().map(|step| lines::step(step, total)).into_iter().collect();
        let newest = run.evaluation.iter();
        rest.extend(newest.flat_map(|newest| results::evaluation(newest, total, &run.config.spec)));
        rest.extend(run.state.failure.clone().filter(|_| !run.running));
        Ok(Frame {
            title: format!("{}/{}  {}", run.config.namespace, run.config.name, run.status()),
            curves,
            rest: rest.join("\n"),
            has_ended: !run.running,
        })
    }
}

/// The frame as text. Pure.
fn text(frame: &Frame) -> String {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(Some(frame.title.clone()).filter(|title| !title.is_empty()));
    lines.extend(frame.curves.iter().filter_map(|(title, curve)| line(title, curve)));
    lines.push(frame.rest.clone());
    lines.join("\n")
}

/// Title, newest value, curve and range; nothing without values.
fn line(title: &str, curve: &Curve) -> Option<String> {
    let values: Vec<f64> = curve.values().copied().filter(|value| value.is_finite()).collect();
    let newest = values.last()?;
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let [newest, from, to] = [*newest, low, high].map(number);
    let bars = sparkline(&values, (low, high));
    Some(format!("{title:12} {newest:>10}  {bars:WIDTH$}  {from} to {to}"))
}

/// A number of about four digits.
fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        0.001.. => format!("{value:.3}"),
        size if size > 0.0 => format!("{value:.1e}"),
        _ => "0".to_owned(),
    }
}

/// One character per value, or per mean of neighbors if there are more values than characters.
fn sparkline(values: &[f64], (low, high): (f64, f64)) -> String {
    let size = values.len().div_ceil(WIDTH).max(1);
    let bar = |part: &[f64]| {
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        let share = if high > low { (mean - low) / (high - low) } else { 0.0 };
        let index = (share * (BARS.len() as f64 - 1.0)).round() as usize;
        BARS.get(index).copied().unwrap_or_default()
    };
    values.chunks(size).map(bar).collect()
}

#[cfg(test)]
mod tests;
