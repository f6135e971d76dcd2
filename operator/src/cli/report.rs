//! `rljob report`: writes the reports of running and finished runs.

use std::path::PathBuf;

use crate::local::inspect::{self, Run};
use crate::local::report_file;

/// Writes `report.html` of runs and prints the paths.
#[derive(clap::Args, Debug)]
pub struct ReportArgs {
    /// Run directory, or folder of run directories.
    #[arg(value_name = "DIR", default_value = "runs")]
    pub dir: PathBuf,
}

/// Writes the reports; returns their paths.
///
/// # Errors
/// There is no run, or a file cannot be read or written.
pub fn report(arguments: &ReportArgs) -> anyhow::Result<String> {
    let write = |directory: &PathBuf| {
        let run = Run::read(directory)?;
        let path = report_file::write(
            directory,
            &report_file::collect(directory, &run.config, run.outcome())?,
        )?;
        Ok(path.display().to_string())
    };
    let paths =
        inspect::find(&arguments.dir)?.iter().map(write).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(paths.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::inspect::test_support::run_directory;

    #[test]
    fn an_unfinished_run_has_a_report() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let path = report(&ReportArgs { dir: runs.path().to_owned() }).unwrap();
        assert_eq!(path, directory.path().join("report.html").display().to_string());
        assert!(std::fs::read_to_string(path).unwrap().contains("7 of 10 steps"));
    }
}
