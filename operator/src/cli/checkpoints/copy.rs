//! `rljob checkpoints copy`: copies a checkpoint of a local run or of an RLJob to a folder,
//! verified.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rljob_crds::names::CHECKPOINTS_DIR;
use rljob_protocol::version::Version;

use super::folder_copy::{self, Source};
use super::found::{Found, find};
use super::job;
use super::pod_files::PodFiles;
use crate::cli::connection::{Connection, PlaceArgs, Subject};
use crate::cli::forward::without_coordinator;
use crate::local::inspect::find_one;

/// Copy a checkpoint to a folder, from which other jobs start with `restoreFrom`.
///
/// Files are compared with the manifest while they are copied; the manifest is written last. The
/// run may be active. With `--cluster`, the checkpoint of an RLJob with a coordinator is read in
/// the coordinator's container; needs the permissions to get `rljobs`, and to get and create
/// `pods/exec`. Exports are folders that any program copies.
#[derive(clap::Args, Debug)]
pub struct CopyArgs {
    /// Run directory, or a folder with one run (default: `runs`); with `--cluster`, the name of an
    /// RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: Option<String>,
    /// Step of the checkpoint. Default: the newest complete one.
    #[arg(long, value_name = "N")]
    pub step: Option<u32>,
    /// Folder in which `step-N.attempt-K` is created.
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Copies the checkpoint; returns the line to print.
///
/// # Errors
/// There is no such checkpoint, it does not match its manifest, it cannot be read, or the copy
/// exists or cannot be written. What was copied is removed then.
pub async fn copy(arguments: &CopyArgs) -> anyhow::Result<String> {
    let CopyArgs { target, step, to, place } = arguments;
    let directory = match place.subject(target.as_deref()).await? {
        Subject::RLJob(connection, name) => {
            return copy_from_job(&connection, name, *step, to).await;
        }
        Subject::Runs(dir) => find_one(dir)?,
    };
    let (folder, version) = chosen(&directory, *step)?;
    let failed = format!("failed to copy {}", folder.display());
    let target = folder_copy::target(to, version)?;
    folder_copy::copy(&Source::Folder(folder), version, &target).await.context(failed)
}

/// Folder of the newest complete checkpoint, or of that of a step.
fn chosen(directory: &Path, step: Option<u32>) -> anyhow::Result<(PathBuf, Version)> {
    let of_step = |found: &Found| step.is_none_or(|step| found.version.step == step);
    let all = find(directory)?.checkpoints()?;
    for Found { folder, version, manifest, .. } in all.into_iter().filter(of_step).rev() {
        match manifest {
            Ok(Some(_)) => return Ok((folder, version)),
            Ok(None) => {}
            Err(error) => bail!("{}: {error}", folder.display()),
        }
    }
    let step = step.map(|step| format!(" of step {step}")).unwrap_or_default();
    bail!(
        "{} has no complete checkpoint{step}: `rljob checkpoints list` shows all",
        directory.display()
    )
}

async fn copy_from_job(
    connection: &Connection,
    name: &str,
    step: Option<u32>,
    to: &Path,
) -> anyhow::Result<String> {
    let job = connection.job(name).await?;
    let path = job::of_step(&job, step)?.path;
    let folder = format!("{}/{name}/{path}", connection.namespace);
    if let Some(bucket) = &job.spec.storage.s3 {
        let prefix = bucket.prefix.as_ref().map_or_else(String::new, |prefix| format!("{prefix}/"));
        bail!(
            "RLJob {name} is in a bucket: copy s3://{}/{prefix}{folder} with a client of the \
             bucket",
            bucket.bucket
        );
    }
    let version = path.strip_prefix(CHECKPOINTS_DIR).and_then(|path| path.strip_prefix('/'));
    let version: Option<Version> = version.and_then(|version| version.parse().ok());
    let version = version.with_context(|| format!("the status of RLJob {name} names {path}"))?;
    let target = folder_copy::target(to, version)?;
    let state = without_coordinator(&job);
    ensure!(
        state.is_none(),
        "RLJob {name} {} and has no coordinator that reads files: copy the folder {folder} in its \
         storage, or start another RLJob with restoreFrom.rljob: {{name: {name}, step: {}}}",
        state.unwrap_or_default(),
        version.step
    );
    let files = PodFiles::new(connection, name, version);
    files.check(connection).await?;
    let failed = || format!("failed to copy {path} of RLJob {name}");
    folder_copy::copy(&Source::Pod(Box::new(files)), version, &target).await.with_context(failed)
}
