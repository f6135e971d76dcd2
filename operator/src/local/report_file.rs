//! Report of a run directory: writes the dashboard's page with the data of the run.

use std::fs;
use std::path::Path;

use anyhow::Context;
use rljob_dashboard::{RunFiles, RunInfo};

/// File name of the report in a run directory.
pub const REPORT_FILE: &str = "report.html";

/// Writes the report of a run directory to `path`; returns the records of the run.
///
/// # Errors
/// A file of the run directory cannot be read, or the report cannot be written.
pub fn write(directory: &Path, info: &RunInfo, path: &Path) -> anyhow::Result<RunFiles> {
    let failed = || format!("failed to read {}", directory.display());
    let mut files = RunFiles::new(directory);
    files.refresh().with_context(failed)?;
    write_whole(path, &rljob_dashboard::report(info, &files).with_context(failed)?)?;
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
