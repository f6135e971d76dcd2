//! `rljob checkpoints restore`: returns a stopped local run, or a suspended RLJob, to one of its
//! checkpoints. `rljob-coordinator` changes the run, whose journal it owns.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use rljob_crds::RunConfig;
use rljob_dashboard::AcceptedChanges;

use super::job_restore;
use crate::cli::connection::{PlaceArgs, Subject};
use crate::cli::job_check;
use crate::local::directory::{RunDirectory, State};
use crate::local::inspect::{Run, find_one};

/// Return a stopped run to a checkpoint, from whose step it continues.
///
/// Steps, samples, checkpoints, exports and lines of files after the step are discarded, and
/// sampled and trained again. Without `--discard` they are listed, and nothing changes. To keep
/// both, start another job from the checkpoint with `restoreFrom`. With `--cluster`, sets
/// `spec.rollbackTo` of a suspended RLJob; its coordinator discards what is later when the job
/// resumes. Needs the permissions to get and patch `rljobs`.
#[derive(clap::Args, Debug)]
pub struct RestoreArgs {
    /// Run directory, or a folder with one run (default: `runs`); with `--cluster`, the name of an
    /// RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: Option<String>,
    /// Step of a complete checkpoint.
    #[arg(long, value_name = "N")]
    pub step: u32,
    /// Discard what is later than the checkpoint.
    #[arg(long)]
    pub discard: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Restores the run; returns the lines to print.
///
/// # Errors
/// The run is active, the checkpoint is missing or does not match its manifest, the run cannot be
/// restored, or something would be discarded without `--discard`.
pub async fn restore(arguments: &RestoreArgs) -> anyhow::Result<String> {
    let RestoreArgs { target, step, discard, place } = arguments;
    match place.subject(target.as_deref()).await? {
        Subject::RLJob(connection, name) => {
            job_restore::restore(&connection, name, *step, *discard).await
        }
        Subject::Runs(dir) => restore_local(dir, *step, *discard),
    }
}

fn restore_local(dir: &Path, step: u32, discard: bool) -> anyhow::Result<String> {
    let path = find_one(dir)?;
    let Run { config, running, is_local, .. } = Run::read(&path)?;
    let run = format!("{}/{}", config.namespace, config.name);
    ensure!(
        is_local,
        "{run} is the run of an RLJob: suspend it, then restore it with kubectl rljob checkpoints \
         restore {} --step={step}",
        config.name
    );
    ensure!(!running, "{run} is active: stop its `rljob run` with Ctrl-C, then restore it");
    let directory = RunDirectory::open(&path)?;
    // The folder may have moved since its last start.
    let run_directory =
        fs::canonicalize(&path).with_context(|| format!("failed to look up {}", path.display()))?;
    let config = RunConfig { run_directory, ..config };
    let discarded = roll_back(&config, step, &["--dry-run"])?;
    if !discarded.is_empty() && !discard {
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
    let mut state = State { succeeded: false, failure: None, ..directory.state()? };
    // The spec of the run is that of the newest changes, from this step on.
    for changes in std::mem::take(&mut state.changes) {
        AcceptedChanges { step: changes.step.min(step), ..changes }.add(&mut state.changes);
    }
    directory.record(&state)?;
    let discarded = roll_back(&config, step, &[])?;
    Ok(format!("discarded:\n{discarded}{end}"))
}

fn roll_back(config: &RunConfig, step: u32, more: &[&str]) -> anyhow::Result<String> {
    let step = step.to_string();
    let arguments = [&["--roll-back", &step], more].concat();
    job_check::ask(config, "rljob-coordinator", &arguments)
}

#[cfg(test)]
mod tests {
    use super::restore_local;
    use crate::local::inspect::test_support::cluster_run_directory;

    #[test]
    fn a_run_of_a_cluster_is_restored_through_its_cluster() {
        let runs = tempfile::tempdir().unwrap();
        let directory = cluster_run_directory(runs.path());
        let expected = "lab/sums is the run of an RLJob: suspend it, then restore it with kubectl \
                        rljob checkpoints restore sums --step=2";
        assert_eq!(restore_local(&directory, 2, true).unwrap_err().to_string(), expected);
        assert!(!directory.join("lock").exists());
    }
}
