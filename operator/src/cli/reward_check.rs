//! Check of the functions of `python` rewards: `rljob-coordinator --check-rewards` imports them in
//! the sandbox, as a run would.

use std::path::Path;

use anyhow::{Context, bail};

use super::job_check;
use crate::local::set::Set;
use crate::local::{has_reward_functions, jobs};

/// Checks the jobs of a file that have not finished. Files that are missing are problems of the
/// job's inputs ([`crate::local::check`]).
///
/// # Errors
/// What would fail a run at its start.
pub fn check(file: &Path, sets: &[Set], runs: &Path) -> anyhow::Result<()> {
    let runs = std::path::absolute(runs)
        .with_context(|| format!("failed to resolve {}", runs.display()))?;
    let mut problems = Vec::new();
    for job in jobs::read(file, sets, None)? {
        if jobs::has_finished(&runs, &job) || !has_reward_functions(&job) {
            continue;
        }
        let at = || format!("{}: rljob {}", file.display(), job.name);
        let checked = job_check::check(&job, "", "rljob-coordinator", &["--check-rewards"]);
        if let Err(error) = checked.with_context(at) {
            problems.push(format!("{error:#}"));
        }
    }
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}
