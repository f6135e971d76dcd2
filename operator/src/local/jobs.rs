//! Job file → jobs that can run on this machine: applies `--set`, validates, makes relative paths
//! absolute. Pure except [`read`]. [`super::inputs`] checks the files that they name.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use kube::ResourceExt;
use rljob_crds::names::{EVALUATIONS_FILE, EXPORT_COMPLETE_FILE, EXPORT_DIR, METRICS_FILE};
use rljob_crds::restore::S3Checkpoint;
use rljob_crds::{RLJob, RunConfig};
use rljob_dashboard::records;
use rljob_protocol::status::StepMetrics;

use super::edited::{EditError, edit, named_problems, once};
use super::evaluate::{EvaluateArgs, SelectError};
use super::paths::paths_mut;
use super::set::{Set, SetError};
use crate::validate::{InvalidSpec, Policy, ValidatedJob, job_text, parse_jobs, validate};

/// Error of a job file.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    /// The file cannot be read.
    #[error("failed to read {path}")]
    Read { path: PathBuf, source: io::Error },
    /// The file is not YAML.
    #[error("failed to read {path} as YAML")]
    Yaml { path: PathBuf, source: serde_yaml::Error },
    /// A `--set` cannot be applied.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The job to evaluate is not in the file.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A job is invalid; one line per problem.
    #[error("{}", lines(path, problems))]
    Invalid { path: PathBuf, problems: Vec<String> },
}

fn lines(path: &Path, problems: &[String]) -> String {
    let lines = problems.iter().map(|problem| format!("{}: {problem}", path.display()));
    lines.collect::<Vec<_>>().join("\n")
}

/// Reads the jobs of a file, in order; with `evaluation`, the evaluation of one.
///
/// # Errors
/// [`JobsError`].
pub fn read(
    file: &Path,
    sets: &[Set],
    evaluation: Option<&EvaluateArgs>,
) -> Result<Vec<ValidatedJob>, JobsError> {
    let failed = |source| JobsError::Read { path: file.to_owned(), source };
    let text = fs::File::open(file).and_then(job_text).map_err(failed)?;
    let absolute = std::path::absolute(file).map_err(failed)?;
    let folder = absolute.parent().unwrap_or(&absolute);
    let Some(evaluation) = evaluation else { return parse(file, &text, sets, folder) };
    let current = std::env::current_dir().map_err(failed)?;
    let sets = evaluation.sets(sets);
    let job = evaluation.apply(parse_objects(file, &text, &sets)?, &current)?;
    validated(file, &[job], &sets, folder)
}

/// Parses jobs. `file` is the name in errors; relative paths start at `folder`, which is absolute.
fn parse(
    file: &Path,
    text: &str,
    sets: &[Set],
    folder: &Path,
) -> Result<Vec<ValidatedJob>, JobsError> {
    validated(file, &parse_objects(file, text, sets)?, sets, folder)
}

fn validated(
    file: &Path,
    jobs: &[RLJob],
    sets: &[Set],
    folder: &Path,
) -> Result<Vec<ValidatedJob>, JobsError> {
    let is_one = jobs.len() == 1;
    let validated = jobs.iter().map(|job| {
        // A problem that every job has after a `--set` names the job.
        let named = |error: InvalidSpec| match invalid(file, sets, error) {
            JobsError::Invalid { path, problems } if !is_one => {
                let name = job.name_any();
                let problems = problems.iter().map(|problem| format!("{name}: {problem}"));
                JobsError::Invalid { path, problems: problems.collect() }
            }
            error => error,
        };
        Ok(resolved(validate(job, Policy::LOCAL).map_err(named)?, folder))
    });
    validated.collect()
}

/// Parses RLJobs with `sets` applied, for any cluster or machine. `file` is the name in errors.
///
/// # Errors
/// [`JobsError`].
pub fn parse_objects(file: &Path, text: &str, sets: &[Set]) -> Result<Vec<RLJob>, JobsError> {
    if sets.is_empty() {
        return parse_jobs(text).map_err(|error| invalid(file, sets, error));
    }
    let edited = edit(text, sets).map_err(|error| at(file, error))?;
    let texts: Vec<&str> = edited.iter().map(|(_, text)| text.as_str()).collect();
    parse_jobs(&texts.join("---\n")).map_err(|error| {
        let problems = if edited.len() > 1 { named_problems(&edited) } else { Vec::new() };
        if problems.is_empty() {
            return invalid(file, sets, error);
        }
        JobsError::Invalid { path: file.to_owned(), problems }
    })
}

fn invalid(file: &Path, sets: &[Set], error: InvalidSpec) -> JobsError {
    // Line numbers of the edited text do not match the file. Without them, problems of several jobs
    // may be equal.
    let problems = error.problems.into_iter().map(|problem| crate::validate::Problem {
        line: problem.line.filter(|_| sets.is_empty()),
        ..problem
    });
    let problems = once(problems.map(|problem| problem.to_string()).collect());
    JobsError::Invalid { path: file.to_owned(), problems }
}

fn at(file: &Path, error: EditError) -> JobsError {
    match error {
        EditError::Yaml(source) => JobsError::Yaml { path: file.to_owned(), source },
        EditError::Set(error) => error.into(),
    }
}

fn resolved(mut job: ValidatedJob, folder: &Path) -> ValidatedJob {
    for (_, path) in paths_mut(&mut job.spec) {
        *path = normal(&folder.join(&*path)).to_string_lossy().into_owned();
    }
    job
}

/// Removes `.` and `x/..` without following links.
pub(super) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

/// Run directory of the job.
pub fn run_directory(runs: &Path, job: &ValidatedJob) -> PathBuf {
    runs.join(&job.namespace).join(&job.name)
}

/// Model folder of the job: its path, a downloaded repository, or the export of another job.
pub fn model_directory(runs: &Path, job: &ValidatedJob) -> PathBuf {
    let export = |name: &str| runs.join(&job.namespace).join(name).join(EXPORT_DIR);
    let model = &job.spec.model;
    let hub = || RunConfig::hub_model(&run_directory(runs, job), &job.spec);
    model
        .path
        .as_ref()
        .map(PathBuf::from)
        .or_else(|| model.job().map(export))
        .or_else(hub)
        .unwrap_or_default()
}

/// Whether a run has finished: it has done all steps of the spec, if that has their number, and its
/// export is complete.
pub fn has_finished(runs: &Path, job: &ValidatedJob) -> bool {
    let directory = run_directory(runs, job);
    let newest = records::newest::<StepMetrics>(&directory.join(METRICS_FILE)).ok().flatten();
    newest.is_some_and(|newest| newest.step >= job.spec.training.steps)
        && directory.join(EXPORT_DIR).join(EXPORT_COMPLETE_FILE).is_file()
}

/// Problems of jobs whose storage does not fit `--use-bucket`.
pub fn storage_problems(use_bucket: bool, jobs: &[ValidatedJob]) -> Vec<String> {
    let problem = |job: &ValidatedJob| match (
        use_bucket,
        &job.spec.storage.s3,
        job.spec.restore_from.as_ref().and_then(|source| source.s3.as_ref()),
    ) {
        (true, None, _) => Some(format!("{}: --use-bucket needs spec.storage.s3", job.name)),
        (false, _, Some(S3Checkpoint { uri })) => {
            Some(format!("{}: spec.restoreFrom.s3: {uri} needs --use-bucket", job.name))
        }
        _ => None,
    };
    jobs.iter().filter_map(problem).collect()
}

/// Whether a run has done a step or an evaluation. Until then, functions that failed are fixed.
pub fn has_results(directory: &Path) -> bool {
    let is_written = |name| directory.join(name).metadata().is_ok_and(|file| file.len() > 0);
    [METRICS_FILE, EVALUATIONS_FILE].into_iter().any(is_written)
}

#[cfg(test)]
pub(super) mod test_support {
    use super::*;
    use crate::validate::test_support::MINIMAL;

    /// The minimal job with changes by `--set`.
    pub fn job(sets: &[&str]) -> ValidatedJob {
        let sets: Vec<Set> = sets.iter().map(|set| set.parse().unwrap()).collect();
        parse(Path::new("dir/jobs.yaml"), MINIMAL, &sets, Path::new("/home/a/dir"))
            .unwrap()
            .remove(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::test_support::MINIMAL;

    fn read(text: &str, sets: &[&str]) -> Result<Vec<ValidatedJob>, String> {
        let sets: Vec<Set> = sets.iter().map(|set| set.parse().unwrap()).collect();
        parse(Path::new("dir/jobs.yaml"), text, &sets, Path::new("/home/a/dir"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn relative_paths_start_at_the_folder_of_the_job_file() {
        let job = read(
            MINIMAL,
            &["spec.model.path=./tiny", "spec.dataset.train.path=../data/train.jsonl"],
        )
        .unwrap()
        .remove(0);
        assert_eq!(job.spec.model.path.as_deref(), Some("/home/a/dir/tiny"));
        assert_eq!(job.spec.dataset.train.path.as_deref(), Some("/home/a/data/train.jsonl"));
        for (command, program) in [("[./agent]", "/home/a/dir/agent"), ("[agent]", "agent")] {
            let set = format!("spec.rollout.workflow.agent.command={command}");
            let job = read(MINIMAL, &[&set]).unwrap().remove(0);
            assert_eq!(job.spec.agent().unwrap().command, [program]);
        }
        let set = "spec.rollout.workflow.environment.command.command=[./maze]";
        let mut job = read(MINIMAL, &[set]).unwrap().remove(0);
        let (_, program) = paths_mut(&mut job.spec).pop().unwrap();
        assert_eq!(program, "/home/a/dir/maze");
        let set = "spec.rollout.workflow.tools.tools=[{name: add, description: Adds., command: \
            {command: [./add], folder: ../tools}}]";
        let mut job = read(MINIMAL, &[set, "spec.dataset.train.format=Chat"]).unwrap().remove(0);
        let (_, folder) = paths_mut(&mut job.spec).pop().unwrap();
        assert_eq!(folder, "/home/a/tools");
        assert_eq!(
            read(MINIMAL, &[]).unwrap().remove(0).spec.model.path.as_deref(),
            Some("/models/tiny")
        );
    }

    #[test]
    fn setting_an_unknown_field_fails_validation() {
        let twice = format!("{MINIMAL}---{}", MINIMAL.replace("name: sums", "name: more"));
        let rejected = read(&twice, &["spec.training.stepz=3"]).unwrap_err();
        assert!(
            rejected.starts_with("dir/jobs.yaml: spec.training.stepz: unknown field"),
            "{rejected}"
        );
        assert_eq!(rejected.lines().count(), 1, "equal problems of both jobs are one line");
        assert_eq!(
            read(&twice, &["more:spec.training.steps=0"]).unwrap_err(),
            "dir/jobs.yaml: more: spec.training.steps: must be at least 1, found 0"
        );
    }

    #[test]
    fn jobs_with_equal_names_are_rejected() {
        let twice = format!("{MINIMAL}---{MINIMAL}");
        assert_eq!(
            read(&twice, &[]).unwrap_err(),
            "dir/jobs.yaml: metadata.name: `lab/sums` is the name of an earlier job of the file"
        );
        let renamed = read(
            &format!("{MINIMAL}---{}", MINIMAL.replace("name: sums", "name: more")),
            &["more:spec.training.steps=3"],
        )
        .unwrap();
        assert_eq!(
            renamed
                .iter()
                .map(|job| (job.name.as_str(), job.spec.training.steps))
                .collect::<Vec<_>>(),
            [("sums", 10), ("more", 3)]
        );
    }
}
