//! Check of the models of jobs on this machine: `rljob-coordinator --check-model` reads the
//! tokenizer, also that of a teacher on engines, and `rljob-learner --check-model` the headers of
//! the weights of the policy, of its teacher and of the models of embedded engines, as a run would.

use std::path::Path;

use anyhow::{Context, bail};
use rljob_crds::algorithm::Capabilities;
use rljob_crds::names::EXPORT_COMPLETE_FILE;

use super::job_check;
use crate::local::set::Set;
use crate::local::{jobs, lacks_model_files};
use crate::validate::ValidatedJob;

/// Checks the models of all jobs of a file that are on this machine and have not finished. Those of
/// the Hugging Face Hub, and exports that are not complete, are checked when the job starts. A
/// folder that lacks files is a problem of the job's inputs ([`crate::local::check`]).
///
/// # Errors
/// What would fail a run at its start.
pub fn check(file: &Path, sets: &[Set], runs: &Path) -> anyhow::Result<()> {
    let runs = std::path::absolute(runs)
        .with_context(|| format!("failed to resolve {}", runs.display()))?;
    let mut problems = Vec::new();
    for job in jobs::read(file, sets, None)? {
        let folder = jobs::model_directory(&runs, &job);
        let exists = job.spec.model.path.is_some() || folder.join(EXPORT_COMPLETE_FILE).is_file();
        if !exists || jobs::has_finished(&runs, &job) || lacks_model_files(&runs, &job) {
            continue;
        }
        let at = || format!("{}: rljob {}", file.display(), job.name);
        if let Err(error) = check_job(&job, &folder).with_context(at) {
            problems.push(format!("{error:#}"));
        }
    }
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

fn check_job(job: &ValidatedJob, folder: &Path) -> anyhow::Result<()> {
    let model = folder.to_str().with_context(|| format!("{} is not UTF-8", folder.display()))?;
    job_check::check(job, model, "rljob-coordinator", &["--check-model"])?;
    // An earlier job of the file may write the teacher.
    let teacher = job.spec.algorithm.capabilities().and_then(Capabilities::teacher);
    let has_teacher = teacher.is_none_or(|folder| Path::new(folder).is_dir());
    let has_fixed_model = job.spec.fixed_models().next().is_some();
    if has_teacher && (job.spec.algorithm.has_learners() || has_fixed_model) {
        job_check::check(job, model, "rljob-learner", &["--check-model"])?;
    }
    Ok(())
}
