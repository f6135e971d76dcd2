//! `rljob run`: runs the jobs of a file on this machine in sequence, without Kubernetes.
//!
//! ```text
//!  FILE, --set ─▶ jobs ─▶ directory (lock, tokens, run.json)
//!    ─▶ session: coordinator, engines, supervisors, and the operator's `decide`
//!    ─▶ report.html
//! ```
//!
//! Reading order: this file, [`jobs`], [`session`], [`processes`], [`process`]. [`set`],
//! [`commands`], [`backoff`] and [`lines`] are pure. [`inspect`] reads the run
//! directories of other processes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use rljob_crds::RunConfig;
use rljob_crds::training::TrainingSpec;
use rljob_protocol::metrics::{EvaluationMetrics, StepMetrics};

use crate::terminal::printable;
use crate::validate::{Problem, ValidatedJob, local_warnings, warnings};

mod args;
pub mod backoff;
pub mod bootstrap;
pub mod chrome_trace;
pub mod client;
pub mod commands;
pub mod comparison;
mod contents;
mod digest;
pub mod directory;
mod edited;
pub mod evaluate;
pub mod gpus;
mod inputs;
pub mod inspect;
pub mod jobs;
pub mod lines;
mod measure;
mod model_folder;
mod paths;
mod prepare;
pub mod process;
pub mod processes;
mod program_edits;
mod program_files;
mod programs;
mod python_modules;
pub mod report_file;
pub mod results;
pub mod role;
pub mod screen;
mod secrets;
pub mod session;
pub mod set;
pub mod status_file;
mod watchdog;

pub use args::RunArgs;
use commands::Machine;
use directory::{INPUTS_FILE, RunDirectory, State};
pub use evaluate::EvaluateArgs;
pub use inputs::{lacks_data, lacks_model_files, lacks_tokenizer, scores_alone};
use inspect::Run;
pub use prepare::check;
use prepare::{Prepared, Start, prepare, reject_fewer_steps};
use processes::Processes;
pub use programs::relative as relative_programs;
use rljob_http::StopSignals;
use screen::print_line;
use session::{Ending, Session};
use set::Set;

/// Exit code after an interruption: 128 + SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

/// How the runs of a file ended.
#[derive(Debug)]
pub enum Outcome {
    /// All succeeded; their directories.
    Succeeded(Vec<PathBuf>),
    /// One failed or was interrupted, which was printed; the exit code.
    Ended(ExitCode),
}

/// Runs the jobs. Await on the main thread: child processes exit with the thread that started them.
///
/// # Errors
/// A job cannot be started. A failed job is not an error: it is printed and sets the exit code.
pub async fn run(args: &RunArgs) -> anyhow::Result<Outcome> {
    let Prepared { jobs, runs, machine } = prepare(args)?;
    let mut interrupts = StopSignals::listen().context("failed to listen for Ctrl-C")?;
    for job in &jobs {
        match run_job(job, &runs, args, &machine, &mut interrupts)
            .await
            .with_context(|| format!("failed to run {}", job.name))?
        {
            Ending::Succeeded => {}
            Ending::Failed(cause) => {
                eprintln!("error: {} failed: {}", job.name, printable(&cause));
                return Ok(Outcome::Ended(ExitCode::FAILURE));
            }
            ending @ (Ending::Drained | Ending::Stopped) => {
                let saved = if ending == Ending::Drained {
                    "all steps are in a checkpoint; to resume"
                } else {
                    "stopped without a new checkpoint; to resume"
                };
                let command = args.command_line();
                print_line(&format!("{}: {saved}:\n  {command}", job.name))?;
                return Ok(Outcome::Ended(ExitCode::from(INTERRUPTED)));
            }
        }
    }
    Ok(Outcome::Succeeded(jobs.iter().map(|job| jobs::run_directory(&runs, job)).collect()))
}

async fn run_job(
    job: &ValidatedJob,
    runs: &Path,
    args: &RunArgs,
    machine: &Machine,
    interrupts: &mut StopSignals,
) -> anyhow::Result<Ending> {
    let directory = RunDirectory::open(&jobs::run_directory(runs, job))?;
    directory.check_inside(runs)?;
    let own = warnings(&job.spec).into_iter().chain(local_warnings(&job.spec));
    for warning in own.chain(model_warning(runs, job)) {
        print_line(&format!("{}: warning: {warning}", job.name))?;
    }
    let Some(config) = record_start(job, runs, args, &directory)? else {
        return Ok(Ending::Succeeded);
    };
    let training = &job.spec.training;
    let what = match training.epochs {
        _ if !job.spec.algorithm.has_learners() => "evaluation".to_owned(),
        Some(1) => "1 epoch".to_owned(),
        Some(epochs) => format!("{epochs} epochs"),
        None => format!("{} steps", training.steps),
    };
    print_line(&format!("{}: {what} in {}", job.name, directory.path().display()))?;
    for line in machine.gpus.lines(&job.spec) {
        print_line(&format!("{}: {line}", job.name))?;
    }
    let started = Instant::now();
    let ending = start(job, &config, machine, &directory)?.run(interrupts).await?;
    let failure = if let Ending::Failed(cause) = &ending { Some(cause.clone()) } else { None };
    directory.record(&State {
        succeeded: ending == Ending::Succeeded,
        failure,
        ..directory.state()?
    })?;
    finish(&config, &directory, started.elapsed().as_secs_f64())?;
    Ok(ending)
}

/// What the model of a job makes of its settings, if it is on this machine.
fn model_warning(runs: &Path, job: &ValidatedJob) -> Option<Problem> {
    model_folder::long_completions(&jobs::model_directory(runs, job), &job.spec)
}

/// Warnings about the jobs of a file by their models, with the names of the jobs.
///
/// # Errors
/// The file has no valid jobs.
pub fn model_warnings(
    file: &Path,
    sets: &[Set],
    runs: &Path,
) -> anyhow::Result<Vec<(String, Problem)>> {
    let jobs = jobs::read(file, sets, None)?;
    let runs = std::path::absolute(runs)?;
    let of = |job: &ValidatedJob| Some((job.name.clone(), model_warning(&runs, job)?));
    Ok(jobs.iter().filter_map(of).collect())
}

/// Checks the run directory and records the start of a run. Returns no configuration if the run has
/// finished.
fn record_start(
    job: &ValidatedJob,
    runs: &Path,
    args: &RunArgs,
    directory: &RunDirectory,
) -> anyhow::Result<Option<RunConfig>> {
    let opened = Start::new(job, runs, args, directory)?;
    if !args.accept_changes {
        opened.reject_changes(directory)?;
    }
    reject_fewer_steps(job, directory)?;
    let mut state = directory.state()?;
    if let Some(accepted) = opened.accepted(directory)? {
        accepted.add(&mut state.changes);
    }
    let previous = opened.previous.as_ref().map(|config| &config.spec.training);
    if state.succeeded && !is_longer(&job.spec.training, previous) {
        let field = if job.spec.training.epochs.is_some() { "epochs" } else { "steps" };
        let further = format!("to train further, raise spec.training.{field}; ");
        let further = if job.spec.algorithm.has_learners() { &*further } else { "" };
        print_line(&format!(
            "{}: already finished; {further}to run it again, remove {}",
            job.name,
            directory.path().display()
        ))?;
        return Ok(None);
    }
    directory.record(&State { succeeded: false, failure: None, ..state })?;
    directory.write_run_config(&opened.config)?;
    // After it: a record of earlier paths is compared again, a later one would not match.
    directory.write(INPUTS_FILE, &opened.inputs.inputs)?;
    Ok(Some(opened.config))
}

/// Whether a run trains further than a finished one with the `previous` settings.
fn is_longer(training: &TrainingSpec, previous: Option<&TrainingSpec>) -> bool {
    let length = |own: &TrainingSpec| own.epochs.unwrap_or(own.steps);
    previous.is_none_or(|previous| {
        // Steps and epochs do not compare.
        previous.epochs.is_some() == training.epochs.is_some()
            && length(training) > length(previous)
    })
}

fn start<'a>(
    job: &'a ValidatedJob,
    config: &RunConfig,
    machine: &Machine,
    directory: &'a RunDirectory,
) -> anyhow::Result<Session<'a>> {
    let tokens = directory.create_tokens(&config.uid)?;
    let port = process::free_port().context("failed to find a free port for the coordinator")?;
    let program = std::env::current_exe().context("failed to find the path of this program")?;
    let programs = program.parent().context("the path of this program has no folder")?;
    let processes = Processes::new(
        programs,
        commands::process_specs(config, directory, machine, port),
        |name| directory.log(name),
    );
    let coordinator = client::Coordinator::new(port, tokens, &config.uid)
        .context("failed to create an HTTP client")?;
    Ok(Session::new(job, directory, processes, coordinator)?)
}

/// Writes the report and prints the summary.
fn finish(config: &RunConfig, directory: &RunDirectory, seconds: f64) -> anyhow::Result<()> {
    // The run has ended, although the lock is still held.
    let ended = Run { running: false, ..Run::read(directory.path())? };
    let path = directory.path().join(report_file::REPORT_FILE);
    let files = report_file::write(directory.path(), &ended.info()?, &path)?;
    let steps: Vec<StepMetrics> = files.steps().cloned().collect();
    let evaluations: Vec<EvaluationMetrics> = files.evaluations().cloned().collect();
    print_line(&results::summary(&config.name, &steps, &evaluations, seconds, &config.spec))?;
    let newest = results::newest_by_suite(&evaluations);
    for line in newest.as_ref().map(results::categories).unwrap_or_default() {
        print_line(&line)?;
    }
    for changes in directory.state()?.changes {
        print_line(&results::changes(&config.name, &changes))?;
    }
    print_line(&format!("report: {}", path.display()))?;
    Ok(())
}
