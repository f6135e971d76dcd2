//! Report of a run directory: writes the dashboard's page with the data of the run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rljob_dashboard::{RunFiles, RunInfo};

/// File name of the report in a run directory.
pub const REPORT_FILE: &str = "report.html";

/// Writes the report into its run directory atomically; returns its path and the records of the
/// run.
///
/// # Errors
/// A file of the run directory cannot be read, or the report cannot be written.
pub fn write(directory: &Path, info: &RunInfo) -> anyhow::Result<(PathBuf, RunFiles)> {
    let mut files = RunFiles::new(directory);
    files.refresh().with_context(|| format!("failed to read {}", directory.display()))?;
    let path = directory.join(REPORT_FILE);
    let written = rljob_dashboard::report(info, &files).and_then(|text| write_whole(&path, &text));
    written.with_context(|| format!("failed to write {}", path.display()))?;
    Ok((path, files))
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("html.partial");
    fs::write(&partial, text)?;
    fs::rename(&partial, path)
}
