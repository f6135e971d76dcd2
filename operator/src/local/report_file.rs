//! Report of a run directory: collects the records and writes the file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rljob_crds::RunConfig;
use rljob_crds::names::{EVALUATIONS_FILE, METRICS_FILE, SAMPLES_FILE};

use super::records;
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
        metrics: records::read_all(&file(METRICS_FILE))?,
        evaluations: records::read_all(&file(EVALUATIONS_FILE))?,
        samples: records::read_all(&file(SAMPLES_FILE))?,
    })
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
