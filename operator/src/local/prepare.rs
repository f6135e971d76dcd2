//! Checks before a process starts: job file, inputs, GPUs, engine command, run directories. `rljob
//! run` and `rljob validate --local` share them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rljob_crds::algorithm::Capabilities;
use rljob_crds::freeze::frozen_changes;
use rljob_crds::names::METRICS_FILE;
use rljob_crds::roles::{EngineKind, InferenceSpec};
use rljob_crds::{BucketConfig, RunConfig};
use rljob_dashboard::{AcceptedChanges, records};
use rljob_protocol::status::StepMetrics;
use rustix::fs::{Access, access};

use super::args::RunArgs;
use super::commands::Machine;
use super::contents::{Inputs, Located};
use super::directory::{DirectoryError, INPUTS_FILE, RunDirectory};
use super::gpus::Gpus;
use super::set::Set;
use super::{inputs, jobs};
use crate::validate::ValidatedJob;

/// Jobs whose inputs are on this machine.
pub struct Prepared {
    pub jobs: Vec<ValidatedJob>,
    /// Folder of run directories, absolute.
    pub runs: PathBuf,
    pub machine: Machine,
}

/// Reads the jobs and checks their inputs.
///
/// # Errors
/// Every problem, one per line.
pub fn prepare(args: &RunArgs) -> anyhow::Result<Prepared> {
    let (prepared, problems) = read(args)?;
    if problems.is_empty() { Ok(prepared) } else { bail!(problems.join("\n")) }
}

/// The jobs, and the problems of their inputs.
fn read(args: &RunArgs) -> anyhow::Result<(Prepared, Vec<String>)> {
    rljob_http::check_authorities()?;
    let sets = args.set.iter().map(|text| text.parse()).collect::<Result<Vec<Set>, _>>()?;
    let jobs = jobs::read(&args.file, &sets, args.evaluation.as_ref())?;
    let runs = std::path::absolute(&args.dir)
        .with_context(|| format!("failed to resolve {}", args.dir.display()))?;
    let runs = jobs::normal(&runs);
    let gpus = Gpus::available(args.share_gpus);
    let mut problems = unsuitable_engines(args, &jobs);
    let engine_command = engine_command(args).unwrap_or_else(|error| {
        problems.push(error.to_string());
        Vec::new()
    });
    problems.extend(jobs::storage_problems(args.use_bucket, &jobs));
    problems.extend(unusable_folder(&runs));
    problems.extend(inputs::missing(&runs, &jobs));
    problems.extend(jobs.iter().flat_map(|job| {
        let own = gpus.problems(&job.spec).into_iter();
        own.map(|problem| format!("{}: {problem}", job.name))
    }));
    Ok((Prepared { jobs, runs, machine: Machine { engine_command, gpus } }, problems))
}

/// Why run directories cannot be created in a folder that need not exist.
fn unusable_folder(runs: &Path) -> Option<String> {
    let existing = runs.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    let problem = if existing.is_dir() {
        access(existing, Access::WRITE_OK | Access::EXEC_OK).err()?.to_string()
    } else {
        "not a folder".to_owned()
    };
    let (runs, existing) = (runs.display(), existing.display());
    Some(format!("--dir {runs}: no folder can be created in {existing}: {problem}"))
}

/// Checks all that `rljob run` checks before it starts a process, and starts none.
///
/// # Errors
/// What `rljob run` with these arguments would reject.
pub fn check(args: &RunArgs) -> anyhow::Result<()> {
    let (Prepared { jobs, runs, .. }, mut problems) = read(args)?;
    for job in &jobs {
        let found = check_directory(args, &runs, job).unwrap_or_else(|error| vec![error]);
        let problem = |error| format!("{}: cannot resume: {error:#}", job.name);
        problems.extend(found.into_iter().map(problem));
    }
    if problems.is_empty() { Ok(()) } else { bail!(problems.join("\n")) }
}

/// Why the run of an existing directory cannot continue with this spec.
fn check_directory(
    args: &RunArgs,
    runs: &Path,
    job: &ValidatedJob,
) -> anyhow::Result<Vec<anyhow::Error>> {
    let path = jobs::run_directory(runs, job);
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let directory = RunDirectory::open(&path)?;
    directory.check_inside(runs)?;
    let start = Start::new(job, runs, args, &directory)?;
    let checks = [start.reject_changes(&directory), reject_fewer_steps(job, &directory)];
    Ok(checks.into_iter().filter_map(Result::err).collect())
}

/// Engines of a job that are SGLang servers, with their fields in the spec.
fn sglang_engines(job: &ValidatedJob) -> impl Iterator<Item = (String, &InferenceSpec)> {
    let all = job.spec.engine_sets().map(|set| (set.field, set.engines));
    all.filter(|(_, own)| own.engine() == EngineKind::SGLang && own.replicas > 0)
}

/// Engines that this machine cannot run, or an engine command that none uses.
fn unsuitable_engines(args: &RunArgs, jobs: &[ValidatedJob]) -> Vec<String> {
    let engines = |job| sglang_engines(job).map(move |(field, own)| (job, field, own));
    let all: Vec<(&ValidatedJob, String, &InferenceSpec)> = jobs.iter().flat_map(engines).collect();
    let spans = all.iter().filter(|(_, _, own)| own.pods_per_engine() > 1).map(|(job, field, _)| {
        format!(
            "{}: spec.{field}.podsPerReplica: on one machine an engine is one process: set it to \
                1, and resources.limits to all GPUs of an engine",
            job.name
        )
    });
    let mut problems: Vec<String> = spans.collect();
    match (&args.engine_command, all.first()) {
        (None, Some((job, field, own))) => {
            let cause = if own.sglang.is_some() { "sglang" } else { "resources.limits" };
            problems.push(format!(
                "{}: spec.{field}.{cause}: the job runs SGLang, which must be installed on this \
                    machine: pass --engine-command 'python3 -m sglang.launch_server'",
                job.name
            ));
        }
        (Some(_), None) => problems.push(format!(
            "--engine-command: no job of {} has spec.inference.sglang",
            args.file.display()
        )),
        _ => {}
    }
    problems
}

/// The words of the engine command; none without it.
fn engine_command(args: &RunArgs) -> anyhow::Result<Vec<String>> {
    let Some(text) = &args.engine_command else { return Ok(Vec::new()) };
    shlex::split(text)
        .filter(|words| !words.is_empty())
        .with_context(|| format!("--engine-command: `{text}` is not a command"))
}

fn steps_done(directory: &RunDirectory) -> anyhow::Result<u32> {
    let newest: Option<StepMetrics> = records::newest(&directory.path().join(METRICS_FILE))?;
    Ok(newest.map_or(0, |newest| newest.step))
}

/// Rejects a spec with fewer steps than the run has done.
pub fn reject_fewer_steps(job: &ValidatedJob, directory: &RunDirectory) -> anyhow::Result<()> {
    let done = steps_done(directory)?;
    // The coordinator compares those of epochs.
    let Some(steps) = job.spec.training.known_steps().filter(|steps| done > *steps) else {
        return Ok(());
    };
    Err(DirectoryError::Steps { directory: directory.path().to_owned(), steps, done }.into())
}

/// A start of a run, which the directory may already contain.
pub struct Start {
    /// Run configuration of the processes.
    pub config: RunConfig,
    pub inputs: Located,
    /// Configuration of the existing run, with the current paths of inputs whose contents are the
    /// same.
    pub previous: Option<RunConfig>,
    /// Whether the existing run has trained a step or evaluated: its results are of its spec.
    has_results: bool,
}

impl Start {
    /// An existing run keeps its UID, and its bucket, model and algorithm cannot change. Reads the
    /// inputs of a run that has moved.
    pub fn new(
        job: &ValidatedJob,
        runs: &Path,
        args: &RunArgs,
        directory: &RunDirectory,
    ) -> Result<Self, DirectoryError> {
        let mut config = first_config(job, runs, args.use_bucket, directory);
        let previous = directory.previous()?;
        let recorded: Inputs = directory.read(INPUTS_FILE)?.unwrap_or_default();
        let folder = args.file.parent().unwrap_or(Path::new(""));
        let mut inputs = Located::new(&recorded, previous.as_ref(), &config, folder);
        let is_evaluated = !job.spec.algorithm.has_learners() && directory.state()?.succeeded;
        let is_finished = is_evaluated || jobs::has_finished(runs, job);
        let has_results = jobs::has_results(directory.path());
        if is_finished || !has_results {
            inputs.edited.clear();
        }
        let Some(previous) = previous else {
            if config.uid.is_empty() {
                config.uid = directory.generate_uid()?;
            }
            return Ok(Self { config, inputs, previous: None, has_results });
        };
        let previous = inputs.at_current_paths(&recorded, previous);
        if let Some(what) = mismatch(&previous, &config, &inputs) {
            return Err(DirectoryError::Mismatch { directory: directory.path().to_owned(), what });
        }
        config.model_identity = inputs.model_identity(&config);
        // A restarted failed run gets a new UID, so that its coordinator starts with no restarts.
        config.uid = if directory.state()?.failure.is_some() {
            directory.generate_uid()?
        } else {
            previous.uid.clone()
        };
        Ok(Self { config, inputs, previous: Some(previous), has_results })
    }

    /// Fields that change the samples of the existing run and differ from its spec. A run without
    /// results has none: its fields can be corrected.
    fn changed_fields(&self) -> anyhow::Result<Vec<String>> {
        let Some(previous) = self.previous.as_ref().filter(|_| self.has_results) else {
            return Ok(Vec::new());
        };
        let [before, now] =
            [previous, &self.config].map(|config| serde_json::to_value(&config.spec));
        Ok(frozen_changes(&before?, &now?))
    }

    /// Changes of a run that has done steps, which `--accept-changes` accepts.
    pub fn accepted(&self, directory: &RunDirectory) -> anyhow::Result<Option<AcceptedChanges>> {
        let step = steps_done(directory)?;
        let fields = [self.changed_fields()?, self.inputs.edited.clone()].concat();
        let has_changed = step > 0 && !fields.is_empty();
        Ok(has_changed.then_some(AcceptedChanges { step, fields }))
    }

    /// Rejects a spec that differs from that of the existing run in fields that change its samples,
    /// and edited programs and functions.
    pub fn reject_changes(&self, directory: &RunDirectory) -> anyhow::Result<()> {
        let fields = self.changed_fields()?;
        let (directory, edited) = (directory.path().to_owned(), self.inputs.edited.clone());
        let error = match (fields.is_empty(), edited.is_empty()) {
            (true, true) => return Ok(()),
            (true, false) => DirectoryError::Edited { directory, fields: edited },
            (false, _) => {
                let contents = [self.inputs.changed.clone(), edited].concat();
                DirectoryError::Changed { directory, fields, contents }
            }
        };
        Err(error.into())
    }
}

/// Run configuration of a job that has not begun.
fn first_config(
    job: &ValidatedJob,
    runs: &Path,
    use_bucket: bool,
    directory: &RunDirectory,
) -> RunConfig {
    let source = job.spec.storage.s3.as_ref().filter(|_| use_bucket);
    RunConfig {
        protocol: rljob_crds::run_config::protocol(&job.spec),
        namespace: job.namespace.clone(),
        name: job.name.clone(),
        uid: job.uid.clone(),
        run_directory: directory.path().to_owned(),
        bucket: source.map(|source| BucketConfig::of(source, &job.namespace, &job.name, None)),
        model_directory: jobs::model_directory(runs, job),
        model_identity: None,
        spec: job.spec.clone(),
    }
}

/// What differs between two configurations that cannot be of one run.
fn mismatch(previous: &RunConfig, config: &RunConfig, inputs: &Located) -> Option<&'static str> {
    let algorithm =
        |config: &RunConfig| config.spec.algorithm.capabilities().map(Capabilities::name);
    let has_head = |config: &RunConfig| {
        config.spec.algorithm.capabilities().is_some_and(Capabilities::has_value_head)
    };
    let normalizes = |config: &RunConfig| {
        config.spec.algorithm.capabilities().is_some_and(Capabilities::normalizes_values)
    };
    if previous.bucket != config.bucket {
        return Some("bucket (--use-bucket, spec.storage.s3)");
    }
    // A downloaded model is in the run directory.
    let is_folder = config.spec.model.hugging_face.is_none();
    if previous.spec.model != config.spec.model
        || (is_folder && previous.model_directory != config.model_directory)
    {
        let has_moved = inputs.changed.iter().any(|field| field.starts_with("spec.model"));
        return Some(if has_moved { "spec.model (other contents)" } else { "spec.model" });
    }
    if previous.spec.lora != config.spec.lora {
        return Some("spec.lora");
    }
    if algorithm(previous) != algorithm(config) {
        return Some("spec.algorithm");
    }
    if has_head(previous) != has_head(config) {
        return Some("spec.algorithm.ppo.valueHead");
    }
    (normalizes(previous) != normalizes(config)).then_some("spec.algorithm.ppo.valueNormalization")
}

#[cfg(test)]
mod tests {
    use super::super::inspect::test_support::run_directory;
    use super::*;
    use crate::validate::test_support::with_spec;

    /// Why the run that `run_directory` makes cannot continue with another rate.
    fn problems_of_another_rate(runs: &Path) -> Vec<String> {
        let args = RunArgs {
            file: "jobs.yaml".into(),
            set: Vec::new(),
            dir: runs.to_owned(),
            use_bucket: false,
            accept_changes: false,
            compare: false,
            engine_command: None,
            share_gpus: None,
            evaluation: None,
        };
        let job = with_spec(&serde_json::json!({"optimizer": {"learningRate": 0.25}}));
        let problems = check_directory(&args, runs, &job).unwrap();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_changed_field_is_rejected_once_the_run_has_results() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let path = directory.path().to_owned();
        let begun = with_spec(&serde_json::json!({}));
        let config = first_config(&begun, runs.path(), false, &directory);
        directory.write_run_config(&config).unwrap();
        drop(directory);
        let problem = format!(
            "{} has a run of another spec: spec.optimizer.learningRate differ; restore them, pass \
             --accept-changes to continue with the new ones, or choose another --dir",
            path.display()
        );
        assert_eq!(problems_of_another_rate(runs.path()), [problem]);
        std::fs::write(path.join(METRICS_FILE), "").unwrap();
        assert_eq!(problems_of_another_rate(runs.path()), [""; 0]);
    }

    #[test]
    fn fewer_steps_than_are_done_are_rejected() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let check = |steps: u32| {
            let job = with_spec(&serde_json::json!({"training": {"steps": steps}}));
            reject_fewer_steps(&job, &directory).map_err(|error| error.to_string())
        };
        assert_eq!(check(7), Ok(()));
        let message = format!(
            "spec.training.steps is 6, but the run in {} has done 7 steps: set it to 7 or more, \
             or choose another --dir",
            directory.path().display()
        );
        assert_eq!(check(6), Err(message.clone()));
        let state = super::super::directory::State { succeeded: true, ..Default::default() };
        directory.record(&state).unwrap();
        assert_eq!(check(6), Err(message), "the run has succeeded");
    }
}
