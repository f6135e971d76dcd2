//! Files of a run, read while they grow.

use std::io;
use std::path::Path;

use rljob_crds::names::{EVALUATION_SAMPLES_FILE, EVALUATIONS_FILE, METRICS_FILE, SAMPLES_FILE};
use rljob_protocol::metrics::{EvaluationMetrics, StepMetrics};
use serde_json::{Value, json};

use crate::overview::{Overview, RunInfo, columns};
use crate::records::{Tail, Thinned};
use crate::samples::{Page, SampleFile};

/// Most points of a curve.
const MAX_POINTS: usize = 600;
/// Most steps to choose from; the page reaches others step by step.
const MAX_CHOICES: usize = 200;

/// The records of a run directory.
#[derive(Debug)]
pub struct RunFiles {
    metrics: Tail,
    evaluations: Tail,
    steps: Thinned<StepMetrics>,
    evaluated: Thinned<EvaluationMetrics>,
    samples: SampleFile,
    evaluation_samples: SampleFile,
}

impl RunFiles {
    /// The files need not exist yet.
    pub fn new(directory: &Path) -> Self {
        let file = |name: &str| directory.join(name);
        Self {
            metrics: Tail::new(file(METRICS_FILE)),
            evaluations: Tail::new(file(EVALUATIONS_FILE)),
            steps: Thinned::default(),
            evaluated: Thinned::default(),
            samples: SampleFile::new(file(SAMPLES_FILE)),
            evaluation_samples: SampleFile::new(file(EVALUATION_SAMPLES_FILE)),
        }
    }

    /// Reads what was added to the files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn refresh(&mut self) -> io::Result<()> {
        let (steps, evaluated) = (&mut self.steps, &mut self.evaluated);
        self.metrics.each(|step| {
            steps.push(step);
            Ok(())
        })?;
        self.evaluations.each(|evaluation| {
            evaluated.push(evaluation);
            Ok(())
        })?;
        self.samples.refresh()?;
        self.evaluation_samples.refresh()
    }

    /// Newest completed step.
    pub fn last_step(&self) -> u32 {
        self.steps.last().map_or(0, |step| step.step)
    }

    /// Metrics of at most [`Thinned::MAX`] steps, in order, with the first and the last.
    pub fn steps(&self) -> impl Iterator<Item = &StepMetrics> {
        self.steps.iter()
    }

    /// At most [`Thinned::MAX`] evaluations, in order, with the first and the last.
    pub fn evaluations(&self) -> impl Iterator<Item = &EvaluationMetrics> {
        self.evaluated.iter()
    }

    /// Entry of a list of runs.
    pub fn summary(&self, number: usize, info: &RunInfo) -> Value {
        json!({
            "run": number, "name": info.name, "status": info.status, "isRunning": info.is_running,
            "cause": info.cause, "step": self.last_step(), "totalSteps": info.total_steps,
        })
    }

    /// What the page shows except samples.
    pub fn overview<'a>(&'a self, info: &'a RunInfo) -> Overview<'a> {
        Overview {
            info,
            step: self.last_step(),
            columns: columns(&self.steps.at_most(MAX_POINTS)),
            recorded_steps: self.steps.count(),
            evaluations: self.evaluated.at_most(MAX_POINTS),
            sample_steps: self.samples.steps(MAX_CHOICES),
            answer_steps: self.evaluation_samples.steps(MAX_CHOICES),
        }
    }

    /// Rollouts of a step; see [`SampleFile::page`].
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn samples(&self, step: u32, skip: usize) -> io::Result<Option<Page>> {
        self.samples.page(step, skip, |_| true)
    }

    /// Greedy completions of the evaluation after a step; see [`SampleFile::page`].
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn answers(&self, step: u32, skip: usize) -> io::Result<Option<Page>> {
        let is_greedy = |sample: &Value| sample.get("greedy") == Some(&Value::Bool(true));
        self.evaluation_samples.page(step, skip, is_greedy)
    }
}
