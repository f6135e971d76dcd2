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
/// There is no run, or files of a run cannot be read or written. Other reports are written.
pub fn report(arguments: &ReportArgs) -> anyhow::Result<String> {
    let write = |directory: &PathBuf| {
        let run = Run::read(directory)?;
        let (path, _) = report_file::write(directory, &run.info()?)?;
        anyhow::Ok(path.display().to_string())
    };
    let (mut paths, mut failures) = (Vec::new(), Vec::new());
    for directory in inspect::find(&arguments.dir)? {
        match write(&directory) {
            Ok(path) => paths.push(path),
            Err(error) => {
                failures.push(format!("failed to report on {}: {error:#}", directory.display()));
            }
        }
    }
    if failures.is_empty() {
        return Ok(paths.join("\n"));
    }
    failures.extend(paths.iter().map(|path| format!("written: {path}")));
    anyhow::bail!(failures.join("\n"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::local::inspect::test_support::run_directory;

    #[test]
    fn an_unfinished_run_has_a_report() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let path = report(&ReportArgs { dir: runs.path().to_owned() }).unwrap();
        assert_eq!(path, directory.path().join("report.html").display().to_string());
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"step\":7,\"totalSteps\":10"));
        std::fs::remove_file(&path).unwrap();

        let damaged = runs.path().join("lab/damaged");
        std::fs::create_dir_all(&damaged).unwrap();
        std::fs::write(damaged.join("run.json"), "{").unwrap();
        let error = report(&ReportArgs { dir: runs.path().to_owned() }).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("failed to report on {}: ", damaged.display())),
            "{error}"
        );
        assert!(error.ends_with(&format!("\nwritten: {path}")), "{error}");
        assert!(Path::new(&path).exists(), "the other report is written");
    }
}
