//! `rljob report`: the report of a run as it stands, while it runs or after.

use std::path::PathBuf;

use crate::local::inspect::{self, Run};
use crate::local::reports;

/// Writes `report.html` of runs as they stand now, and says where.
#[derive(clap::Args, Debug)]
pub struct ReportArgs {
    /// A run directory, or a folder of run directories.
    #[arg(value_name = "DIR", default_value = "runs")]
    pub dir: PathBuf,
}

/// Writes the reports; gives their paths.
///
/// # Errors
/// There is no run, or its files cannot be read or written.
pub fn report(arguments: &ReportArgs) -> anyhow::Result<String> {
    let write = |directory: &PathBuf| {
        let run = Run::read(directory)?;
        let path =
            reports::write(directory, &reports::gather(directory, &run.config, run.outcome())?)?;
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
    fn a_report_is_written_of_a_run_that_is_not_at_its_end() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let path = report(&ReportArgs { dir: runs.path().to_owned() }).unwrap();
        assert_eq!(path, directory.path().join("report.html").display().to_string());
        assert!(std::fs::read_to_string(path).unwrap().contains("7 of 10 steps"));
    }
}
