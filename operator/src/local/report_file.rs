//! Report of a run directory: collects the records that it shows and writes the file. The memory
//! for them does not grow with the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rljob_crds::RunConfig;
use rljob_crds::names::{EVALUATIONS_FILE, METRICS_FILE, SAMPLES_FILE};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::records::{SampleLine, Tail, Thinned};
use super::report::{self, Outcome, Report};

/// File name of the report in a run directory.
pub const REPORT_FILE: &str = "report.html";

/// Reads the inputs of the report.
///
/// # Errors
/// A file of the run directory cannot be read.
pub fn collect(directory: &Path, config: &RunConfig, outcome: Outcome) -> anyhow::Result<Report> {
    let file = |name| directory.join(name);
    Ok(Report {
        name: config.name.clone(),
        outcome,
        spec: serde_yaml::to_string(&config.spec).context("failed to write the spec as YAML")?,
        total_steps: config.spec.training.steps,
        metrics: series(file(METRICS_FILE))?,
        evaluations: series(file(EVALUATIONS_FILE))?,
        samples: samples(&file(SAMPLES_FILE))?,
    })
}

fn series<T: DeserializeOwned>(path: PathBuf) -> io::Result<Vec<T>> {
    let mut values = Thinned::default();
    Tail::new(path).each(|value| {
        values.push(value);
        Ok(())
    })?;
    Ok(values.into_vec())
}

/// The rollouts that the report shows.
fn samples(path: &Path) -> io::Result<Vec<SampleLine>> {
    #[derive(Deserialize)]
    struct Step {
        step: u32,
    }
    let (mut steps, mut samples) = (BTreeSet::new(), Vec::new());
    Tail::new(path.to_owned()).each(|line: Step| {
        steps.insert(line.step);
        Ok(())
    })?;
    let mut wanted: BTreeMap<u32, usize> =
        report::shown_steps(&steps).map(|step| (step, report::SAMPLES_PER_STEP)).collect();
    Tail::new(path.to_owned()).each(|sample: SampleLine| {
        if let Some(left @ 1..) = wanted.get_mut(&sample.step) {
            *left = left.saturating_sub(1);
            samples.push(sample);
        }
        Ok(())
    })?;
    Ok(samples)
}

/// Writes the report into its run directory atomically; returns its path.
///
/// # Errors
/// It cannot be written.
pub fn write(directory: &Path, report: &Report) -> anyhow::Result<PathBuf> {
    let path = directory.join(REPORT_FILE);
    write_whole(&path, &report::render(report))
        .with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("html.partial");
    fs::write(&partial, text)?;
    fs::rename(&partial, path)
}
