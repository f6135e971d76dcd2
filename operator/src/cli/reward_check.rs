//! Check of rewards: `rljob-coordinator --check-rewards` imports functions of `python` rewards in
//! the sandbox, as a run would, and scores the reference answers of first rows.

use std::path::Path;

use anyhow::{Context, bail};

use super::job_check;
use crate::local::set::Set;
use crate::local::{jobs, lacks_data, scores_alone};

/// Start of the lines of the program that are warnings.
const WARNING: &str = "warning: ";

/// Checks the jobs of a file that have not finished; returns the lines to print. Files that are
/// missing are problems of the job's inputs ([`crate::local::check`]).
///
/// # Errors
/// What would fail a run at its start.
pub fn check(file: &Path, sets: &[Set], runs: &Path) -> anyhow::Result<Vec<String>> {
    let runs = std::path::absolute(runs)
        .with_context(|| format!("failed to resolve {}", runs.display()))?;
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    for job in jobs::read(file, sets, None)? {
        if jobs::has_finished(&runs, &job) || lacks_data(&job) || !scores_alone(&job) {
            continue;
        }
        let at = || format!("{}: rljob {}", file.display(), job.name);
        let checked = job_check::check(&job, "", "rljob-coordinator", &["--check-rewards"]);
        match checked.with_context(at) {
            Ok(found) => lines.extend(found.lines().map(|line| match line.strip_prefix(WARNING) {
                Some(warning) => {
                    format!("{}: {WARNING}rljob {}: {warning}", file.display(), job.name)
                }
                None => format!("{}: {line}", at()),
            })),
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    if problems.is_empty() { Ok(lines) } else { bail!("{}", problems.join("\n")) }
}
