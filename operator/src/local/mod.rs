//! `rljob run`: runs the jobs of a file on this machine in sequence, without Kubernetes.
//!
//! ```text
//!  FILE, --set ─▶ jobs ─▶ directory (lock, tokens, run.json) ─▶ session ─▶ report.html
//!                                                                 │
//!                            coordinator, engines, supervisors ◀──┴──▶ the operator's `decide`
//! ```
//!
//! Reading order: this file, [`jobs`], [`session`], [`processes`], [`process`]. [`set`],
//! [`commands`], [`backoff`], [`lines`] and [`report`] are pure. [`inspect`] reads the run
//! directories of other processes.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use rljob_crds::algorithm::Algorithm;
use rljob_crds::freeze::frozen_changes;
use rljob_crds::roles::EngineKind;
use rljob_crds::{BucketConfig, RunConfig};

use crate::validate::{ValidatedJob, warnings};

mod args;
pub mod backoff;
pub mod client;
pub mod commands;
pub mod directory;
pub mod gpus;
pub mod inspect;
pub mod interrupts;
pub mod jobs;
pub mod lines;
pub mod process;
pub mod processes;
pub mod records;
pub mod report;
pub mod report_file;
pub mod screen;
pub mod session;
pub mod set;
pub mod tensorboard;
mod watchdog;

pub use args::RunArgs;
use commands::Machine;
use directory::{DirectoryError, RunDirectory, State};
use interrupts::Interrupts;
use processes::Processes;
use screen::print_line;
use session::{Ending, Session};

/// Exit code after an interruption: 128 + SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

/// Runs the jobs. Await on the main thread: child processes exit with the thread that started them.
///
/// # Errors
/// A job cannot be started. A failed job is not an error: it is printed and sets the exit code.
pub async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let sets = args.set.iter().map(|text| text.parse()).collect::<Result<Vec<set::Set>, _>>()?;
    let jobs = jobs::read(&args.file, &sets)?;
    let runs = std::path::absolute(&args.dir)
        .with_context(|| format!("failed to resolve {}", args.dir.display()))?;
    let machine = machine(&args, &jobs)?;
    let mut missing = jobs::storage_problems(args.use_bucket, &jobs);
    missing.extend(jobs::missing_files(&runs, &jobs));
    missing.extend(jobs.iter().filter_map(|job| {
        Some(format!("{}: {}", job.name, gpus::shortage(job, machine.gpus.len())?))
    }));
    if !missing.is_empty() {
        bail!(missing.join("\n"));
    }
    let mut interrupts = Interrupts::listen().context("failed to listen for Ctrl-C")?;
    for job in &jobs {
        match run_job(job, &runs, &args, &machine, &mut interrupts)
            .await
            .with_context(|| format!("failed to run {}", job.name))?
        {
            Ending::Succeeded => {}
            Ending::Failed(cause) => {
                eprintln!("error: {} failed: {cause}", job.name);
                return Ok(ExitCode::FAILURE);
            }
            ending @ (Ending::Drained | Ending::Stopped) => {
                let saved = if ending == Ending::Drained {
                    "is in a checkpoint"
                } else {
                    "was stopped; it resumes from its last checkpoint"
                };
                let command = args.command_line();
                print_line(&format!("{} {saved}. To resume:\n  {command}", job.name))?;
                return Ok(ExitCode::from(INTERRUPTED));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The engine command and the GPUs.
fn machine(args: &RunArgs, jobs: &[ValidatedJob]) -> anyhow::Result<Machine> {
    let wants_sglang = |job: &ValidatedJob| {
        job.spec.inference.engine() == EngineKind::SGLang && job.spec.inference.replicas > 0
    };
    let Some(text) = &args.engine_command else {
        if let Some(job) = jobs.iter().find(|job| wants_sglang(job)) {
            bail!(
                "{}: spec.inference.sglang: the server must be started on this machine: pass \
                    --engine-command 'python3 -m sglang.launch_server'",
                job.name
            );
        }
        return Ok(Machine { engine_command: Vec::new(), gpus: gpus::available() });
    };
    let engine_command = shlex::split(text)
        .filter(|words| !words.is_empty())
        .with_context(|| format!("--engine-command: `{text}` is not a command"))?;
    anyhow::ensure!(
        jobs.iter().any(wants_sglang),
        "--engine-command: no job of {} has spec.inference.sglang",
        args.file.display()
    );
    Ok(Machine { engine_command, gpus: gpus::available() })
}

async fn run_job(
    job: &ValidatedJob,
    runs: &Path,
    args: &RunArgs,
    machine: &Machine,
    interrupts: &mut Interrupts,
) -> anyhow::Result<Ending> {
    let directory = RunDirectory::open(&jobs::run_directory(runs, job))?;
    for warning in warnings(&job.spec) {
        print_line(&format!("{}: warning: {warning}", job.name))?;
    }
    let config = run_config(job, runs, args.use_bucket, &directory)?;
    if !args.accept_changes {
        refuse_changes(job, &directory)?;
    }
    let state = directory.state()?;
    let finished_steps = directory.previous()?.map_or(0, |config| config.spec.training.steps);
    if state.succeeded && job.spec.training.steps <= finished_steps {
        print_line(&format!(
            "{}: already finished; to train further, raise spec.training.steps; to run it again, \
                remove {}",
            job.name,
            directory.path().display()
        ))?;
        return Ok(Ending::Succeeded);
    }
    directory.record(&State { succeeded: false, failure: None, ..state })?;
    directory.write_run_config(&config)?;
    print_line(&format!(
        "{}: {} steps in {}",
        job.name,
        job.spec.training.steps,
        directory.path().display()
    ))?;
    let started = Instant::now();
    let ending = start(job, &config, machine, &directory)?.run(interrupts).await?;
    let failure = if let Ending::Failed(cause) = &ending { Some(cause.clone()) } else { None };
    directory.record(&State {
        succeeded: ending == Ending::Succeeded,
        failure,
        ..directory.state()?
    })?;
    finish(&config, &directory, &ending, started.elapsed().as_secs_f64())?;
    Ok(ending)
}

/// Refuses a spec that differs from that of the existing run in fields that change its samples.
fn refuse_changes(job: &ValidatedJob, directory: &RunDirectory) -> anyhow::Result<()> {
    let Some(previous) = directory.previous()? else { return Ok(()) };
    let fields =
        frozen_changes(&serde_json::to_value(&previous.spec)?, &serde_json::to_value(&job.spec)?);
    if fields.is_empty() {
        return Ok(());
    }
    Err(DirectoryError::Changed { directory: directory.path().to_owned(), fields }.into())
}

fn start<'a>(
    job: &'a ValidatedJob,
    config: &RunConfig,
    machine: &Machine,
    directory: &'a RunDirectory,
) -> anyhow::Result<Session<'a>> {
    let token = directory.create_tokens()?;
    let port = process::free_port().context("failed to find a free port for the coordinator")?;
    let program = std::env::current_exe().context("failed to find the path of this program")?;
    let programs = program.parent().context("the path of this program has no folder")?;
    let processes = Processes::new(
        programs,
        commands::process_specs(config, directory, machine, port),
        |name| directory.log(name),
    );
    let coordinator =
        client::Coordinator::new(port, token).context("failed to create an HTTP client")?;
    Ok(Session::new(job, directory, processes, coordinator)?)
}

/// Run configuration of the processes. An existing run keeps its UID, and its bucket, model and
/// algorithm cannot change.
fn run_config(
    job: &ValidatedJob,
    runs: &Path,
    use_bucket: bool,
    directory: &RunDirectory,
) -> Result<RunConfig, DirectoryError> {
    let source = job.spec.storage.s3.as_ref().filter(|_| use_bucket);
    let mut config = RunConfig {
        protocol: rljob_crds::run_config::PROTOCOL,
        namespace: job.namespace.clone(),
        name: job.name.clone(),
        uid: job.uid.clone(),
        run_directory: directory.path().to_owned(),
        bucket: source.map(|source| BucketConfig::of(source, &job.namespace, &job.name, None)),
        model_directory: jobs::model_directory(runs, job),
        spec: job.spec.clone(),
    };
    let Some(previous) = directory.previous()? else {
        if config.uid.is_empty() {
            config.uid = directory.generate_uid()?;
        }
        return Ok(config);
    };
    let mismatch = |what| DirectoryError::Mismatch { directory: directory.path().to_owned(), what };
    if previous.bucket != config.bucket {
        return Err(mismatch("bucket (--use-bucket, spec.storage.s3)"));
    }
    let algorithm = |config: &RunConfig| config.spec.algorithm.resolve().map(Algorithm::name);
    if (&previous.model_directory, &previous.spec.model)
        != (&config.model_directory, &config.spec.model)
    {
        return Err(mismatch("spec.model"));
    }
    if algorithm(&previous) != algorithm(&config) {
        return Err(mismatch("spec.algorithm"));
    }
    // A restarted failed run gets a new UID, so that its coordinator starts with no restarts.
    config.uid =
        if directory.state()?.failure.is_some() { directory.generate_uid()? } else { previous.uid };
    Ok(config)
}

/// Writes the report and prints the summary.
fn finish(
    config: &RunConfig,
    directory: &RunDirectory,
    ending: &Ending,
    seconds: f64,
) -> anyhow::Result<()> {
    let outcome = match ending {
        Ending::Succeeded => report::Outcome::Finished,
        Ending::Failed(cause) => report::Outcome::Failed(cause.clone()),
        Ending::Drained | Ending::Stopped => report::Outcome::Interrupted,
    };
    let report = report_file::collect(directory.path(), config, outcome)?;
    let path = report_file::write(directory.path(), &report)?;
    print_line(&lines::summary(&config.name, &report.metrics, &report.evaluations, seconds))?;
    print_line(&format!("report: {}", path.display()))?;
    Ok(())
}
