//! Reports of run directories: write the dashboard's page with the data of one or several runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rljob_dashboard::{RunFiles, RunInfo};

/// File name of the report in a run directory.
pub const REPORT_FILE: &str = "report.html";

/// Writes the report of a run directory to `path`; returns the records of the run.
///
/// # Errors
/// A file of the run directory cannot be read, or the report cannot be written.
pub fn write(directory: &Path, info: &RunInfo, path: &Path) -> anyhow::Result<RunFiles> {
    let files = read(directory)?;
    let page = rljob_dashboard::report(&[(info, &files)]);
    write_whole(path, &page.with_context(|| format!("failed to read {}", directory.display()))?)?;
    Ok(files)
}

/// Writes the report of several runs, each with its directory, to `path`.
///
/// # Errors
/// As for [`write()`].
pub fn write_all(runs: &[(PathBuf, RunInfo)], path: &Path) -> anyhow::Result<()> {
    let files = runs.iter().map(|(own, _)| read(own)).collect::<anyhow::Result<Vec<_>>>()?;
    let pairs: Vec<_> = runs.iter().map(|(_, info)| info).zip(&files).collect();
    write_whole(path, &rljob_dashboard::report(&pairs).context("failed to read a run")?)
}

fn read(directory: &Path) -> anyhow::Result<RunFiles> {
    let mut files = RunFiles::new(directory);
    files.refresh().with_context(|| format!("failed to read {}", directory.display()))?;
    Ok(files)
}

/// Writes or replaces a file: readers find the old or the new content.
///
/// # Errors
/// It cannot be written.
pub fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let partial = path.with_extension("html.partial");
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, path));
    written.with_context(|| format!("failed to write {}", path.display()))
}
