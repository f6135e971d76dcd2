//! Check of the data of jobs: `rljob-coordinator --check-data` reads it as a run would.

use std::path::Path;

use anyhow::{Context, bail};

use super::job_check;
use crate::local::set::Set;
use crate::local::{jobs, lacks_files};
use crate::validate::ValidatedJob;

/// Checks the data of all jobs of a file; returns the lines to print. Jobs whose sources appear
/// when they start are skipped, and with `runs` those whose files are missing: the check of
/// `--local`, which has these run directories, names them.
///
/// # Errors
/// What would fail a run at its start, or no job could be checked.
pub fn check(file: &Path, sets: &[Set], runs: Option<&Path>) -> anyhow::Result<Vec<String>> {
    if file == Path::new("-") {
        bail!("--data needs a file: relative paths of data start at its folder");
    }
    let (mut lines, mut problems, mut is_checked) = (Vec::new(), Vec::new(), false);
    for job in jobs::read(file, sets, None)? {
        let at = format!("{}: rljob {}", file.display(), job.name);
        let Some(model) = local_model(&job) else {
            lines.push(format!("{at}: its model or data do not exist yet: data not checked"));
            continue;
        };
        is_checked = true;
        if runs.is_some_and(|runs| lacks_files(runs, &job)) {
            continue;
        }
        let found = job_check::check(&job, model, "rljob-coordinator", &["--check-data"]);
        match found.with_context(|| at.clone()) {
            Ok(found) => lines.extend(found.lines().map(|line| format!("{at}: {line}"))),
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    if !is_checked {
        bail!("--data reads local files: set model.path and the paths of the datasets");
    }
    if problems.is_empty() { Ok(lines) } else { bail!("{}", problems.join("\n")) }
}

/// The model's folder, if that and the data are local files.
fn local_model(job: &ValidatedJob) -> Option<&str> {
    let sources = job.spec.dataset.sources();
    let downloaded = sources.iter().any(|source| source.hugging_face.is_some());
    job.spec.model.path.as_deref().filter(|_| !downloaded)
}
