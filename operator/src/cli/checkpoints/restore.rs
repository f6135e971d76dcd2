//! `rljob checkpoints restore`: returns a stopped local run to one of its checkpoints.
//! `rljob-coordinator` changes the run, whose journal it owns.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use rljob_crds::RunConfig;

use crate::cli::job_check;
use crate::local::directory::{RunDirectory, State};
use crate::local::inspect::{Run, find_one};

/// Return a stopped local run to a checkpoint: the next `rljob run` continues from its step.
///
/// Steps, samples, checkpoints, exports and lines of files after the step are discarded, and
/// sampled and trained again. Without `--discard` they are listed, and nothing changes. To keep
/// both, start another job from the checkpoint with `restoreFrom`.
#[derive(clap::Args, Debug)]
pub struct RestoreArgs {
    /// Run directory, or a folder with one run (default: `runs`).
    #[arg(value_name = "DIR", default_value = "runs", hide_default_value = true)]
    pub dir: PathBuf,
    /// Step of a complete checkpoint.
    #[arg(long, value_name = "N")]
    pub step: u32,
    /// Discard what is later than the checkpoint.
    #[arg(long)]
    pub discard: bool,
}

/// Restores the run; returns the lines to print.
///
/// # Errors
/// The run is active, the checkpoint is missing or does not match its manifest, the run cannot be
/// restored, or something would be discarded without `--discard`.
pub fn restore(arguments: &RestoreArgs) -> anyhow::Result<String> {
    let path = find_one(&arguments.dir)?;
    let Run { config, running, is_local, .. } = Run::read(&path)?;
    let (run, step) = (format!("{}/{}", config.namespace, config.name), arguments.step);
    ensure!(
        is_local,
        "{run} is the run of an RLJob, which this command cannot stop: start another job with \
         restoreFrom.rljob: {{name: {}, step: {step}}}",
        config.name
    );
    ensure!(!running, "{run} is active: stop its `rljob run` with Ctrl-C, then restore it");
    let directory = RunDirectory::open(&path)?;
    // The folder may have moved since its last start.
    let run_directory =
        fs::canonicalize(&path).with_context(|| format!("failed to look up {}", path.display()))?;
    let config = RunConfig { run_directory, ..config };
    let discarded = roll_back(&config, step, &["--dry-run"])?;
    if !discarded.is_empty() && !arguments.discard {
        bail!(
            "a restore of {run} to step {step} discards:\n{discarded}pass --discard to do so; to \
             keep them, start another job with restoreFrom.rljob: {{name: {}, step: {step}}}",
            config.name
        );
    }
    let end = format!("{run} continues after step {step} with its next `rljob run`");
    if discarded.is_empty() {
        return Ok(format!("nothing is later; {end}"));
    }
    // A succeeded run starts again only if this is recorded. A run that was not restored then finds
    // that it is finished.
    directory.record(&State { succeeded: false, failure: None, ..directory.state()? })?;
    let discarded = roll_back(&config, step, &[])?;
    Ok(format!("discarded:\n{discarded}{end}"))
}

fn roll_back(config: &RunConfig, step: u32, more: &[&str]) -> anyhow::Result<String> {
    let step = step.to_string();
    let arguments = [&["--roll-back", &step], more].concat();
    job_check::ask(config, "rljob-coordinator", &arguments)
}
