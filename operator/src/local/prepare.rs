//! Checks before a process starts: job file, inputs, GPUs, engine command, run directories. `rljob
//! run` and `rljob validate --local` share them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rljob_crds::algorithm::Algorithm;
use rljob_crds::freeze::frozen_changes;
use rljob_crds::names::METRICS_FILE;
use rljob_crds::roles::{EngineKind, InferenceSpec};
use rljob_crds::{BucketConfig, RunConfig};
use rljob_dashboard::records;
use rljob_protocol::status::StepMetrics;
use rustix::fs::{Access, access};

use super::args::RunArgs;
use super::commands::Machine;
use super::contents::{Inputs, Located};
use super::directory::{DirectoryError, INPUTS_FILE, RunDirectory};
use super::set::Set;
use super::{gpus, inputs, jobs};
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
    rljob_http::check_authorities()?;
    let sets = args.set.iter().map(|text| text.parse()).collect::<Result<Vec<Set>, _>>()?;
    let jobs = jobs::read(&args.file, &sets, args.evaluation.as_ref())?;
    let runs = std::path::absolute(&args.dir)
        .with_context(|| format!("failed to resolve {}", args.dir.display()))?;
    let runs = jobs::normal(&runs);
    let machine = machine(args, &jobs)?;
    let mut missing = jobs::storage_problems(args.use_bucket, &jobs);
    missing.extend(unusable_folder(&runs));
    missing.extend(inputs::missing(&runs, &jobs));
    missing.extend(jobs.iter().filter_map(|job| {
        Some(format!("{}: {}", job.name, gpus::shortage(&job.spec, machine.gpus.len())?))
    }));
    if !missing.is_empty() {
        bail!(missing.join("\n"));
    }
    Ok(Prepared { jobs, runs, machine })
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
    let Prepared { jobs, runs, .. } = prepare(args)?;
    for job in &jobs {
        let path = jobs::run_directory(&runs, job);
        if !path.is_dir() {
            continue;
        }
        let rejected = || format!("failed to run {}", job.name);
        let directory = RunDirectory::open(&path).with_context(rejected)?;
        directory.check_inside(&runs).with_context(rejected)?;
        let start = Start::new(job, &runs, args.use_bucket, &directory).with_context(rejected)?;
        start.reject_changes(&directory).with_context(rejected)?;
        reject_fewer_steps(job, &directory).with_context(rejected)?;
    }
    Ok(())
}

/// Engines of a job that are SGLang servers, with their fields in the spec.
fn sglang_engines(job: &ValidatedJob) -> impl Iterator<Item = (&'static str, &InferenceSpec)> {
    let evaluation = job.spec.evaluation_engines().map(|own| ("evaluation.engines", own));
    let all = [("inference", &job.spec.inference)].into_iter().chain(evaluation);
    all.filter(|(_, own)| own.engine() == EngineKind::SGLang && own.replicas > 0)
}

/// The engine command and the GPUs.
fn machine(args: &RunArgs, jobs: &[ValidatedJob]) -> anyhow::Result<Machine> {
    let engines = |job| sglang_engines(job).map(move |(field, own)| (job, field, own));
    let all: Vec<_> = jobs.iter().flat_map(engines).collect();
    if let Some((job, field, _)) = all.iter().find(|(_, _, own)| own.pods_per_engine() > 1) {
        bail!(
            "{}: spec.{field}.podsPerReplica: on one machine an engine is one process: set it to \
                1, and resources.limits to all GPUs of an engine",
            job.name
        );
    }
    let Some(text) = &args.engine_command else {
        if let Some((job, field, own)) = all.first() {
            let cause = if own.sglang.is_some() { "sglang" } else { "resources.limits" };
            bail!(
                "{}: spec.{field}.{cause}: the job runs SGLang, which must be installed on this \
                    machine: pass --engine-command 'python3 -m sglang.launch_server'",
                job.name
            );
        }
        return Ok(Machine { engine_command: Vec::new(), gpus: gpus::available() });
    };
    let engine_command = shlex::split(text)
        .filter(|words| !words.is_empty())
        .with_context(|| format!("--engine-command: `{text}` is not a command"))?;
    anyhow::ensure!(
        !all.is_empty(),
        "--engine-command: no job of {} has spec.inference.sglang",
        args.file.display()
    );
    Ok(Machine { engine_command, gpus: gpus::available() })
}

/// Rejects a spec with fewer steps than the run has done.
pub fn reject_fewer_steps(job: &ValidatedJob, directory: &RunDirectory) -> anyhow::Result<()> {
    let newest: Option<StepMetrics> = records::newest(&directory.path().join(METRICS_FILE))?;
    let (steps, done) = (job.spec.training.steps, newest.map_or(0, |newest| newest.step));
    if done <= steps {
        return Ok(());
    }
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
}

impl Start {
    /// An existing run keeps its UID, and its bucket, model and algorithm cannot change. Reads the
    /// inputs of a run that has moved.
    pub fn new(
        job: &ValidatedJob,
        runs: &Path,
        use_bucket: bool,
        directory: &RunDirectory,
    ) -> Result<Self, DirectoryError> {
        let mut config = first_config(job, runs, use_bucket, directory);
        let previous = directory.previous()?;
        let recorded: Inputs = directory.read(INPUTS_FILE)?.unwrap_or_default();
        let inputs = Located::new(&recorded, previous.as_ref(), &config);
        let Some(previous) = previous else {
            if config.uid.is_empty() {
                config.uid = directory.generate_uid()?;
            }
            return Ok(Self { config, inputs, previous: None });
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
        Ok(Self { config, inputs, previous: Some(previous) })
    }

    /// Rejects a spec that differs from that of the existing run in fields that change its samples.
    pub fn reject_changes(&self, directory: &RunDirectory) -> anyhow::Result<()> {
        let Some(previous) = &self.previous else { return Ok(()) };
        let [before, now] =
            [previous, &self.config].map(|config| serde_json::to_value(&config.spec));
        let fields = frozen_changes(&before?, &now?);
        if fields.is_empty() {
            return Ok(());
        }
        let (directory, contents) = (directory.path().to_owned(), self.inputs.changed.clone());
        Err(DirectoryError::Changed { directory, fields, contents }.into())
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
    let algorithm = |config: &RunConfig| config.spec.algorithm.resolve().map(Algorithm::name);
    let has_head =
        |config: &RunConfig| config.spec.algorithm.resolve().is_some_and(Algorithm::has_value_head);
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
    (has_head(previous) != has_head(config)).then_some("spec.algorithm.ppo.valueHead")
}

#[cfg(test)]
mod tests {
    use super::super::inspect::test_support::run_directory;
    use super::*;
    use crate::validate::test_support::with_spec;

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
