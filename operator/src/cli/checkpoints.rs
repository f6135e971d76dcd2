//! `rljob checkpoints`: lists checkpoints of local runs and of RLJobs; verifies, copies and
//! restores those of local runs.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use jiff::Timestamp;

use super::connection::{Connection, PlaceArgs};
use super::table::table;
use super::tree::age;

mod copy;
mod found;
mod restore;

pub use copy::CopyArgs;
use found::{Found, find, problem, size};
pub use restore::RestoreArgs;

/// List, verify, copy or restore checkpoints.
#[derive(clap::Args, Debug)]
pub struct CheckpointsArgs {
    #[command(subcommand)]
    pub command: CheckpointsCommand,
}

#[derive(clap::Subcommand, Debug)]
pub enum CheckpointsCommand {
    List(ListArgs),
    Verify(VerifyArgs),
    Copy(CopyArgs),
    Restore(RestoreArgs),
}

/// List checkpoints.
///
/// A local run has all of its checkpoints in its folder. With `--cluster`, the newest checkpoint of
/// the status of an RLJob is shown; older ones are in the run's storage.
#[derive(clap::Args, Debug)]
pub struct ListArgs {
    /// Run directory, or folder of run directories (default: `runs`); with `--cluster`, the name of
    /// an RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: Option<String>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Verify that the files of local checkpoints match their manifests: names, sizes and SHA-256.
///
/// Folders without a manifest are incomplete; runs ignore them.
#[derive(clap::Args, Debug)]
pub struct VerifyArgs {
    /// Run directory, or folder of run directories.
    #[arg(value_name = "DIR", default_value = "runs")]
    pub dir: PathBuf,
}

/// Lists, verifies, copies or restores checkpoints; returns the lines to print.
///
/// # Errors
/// There is no run, a checkpoint does not match its manifest, or the run cannot be restored.
pub async fn checkpoints(arguments: &CheckpointsArgs) -> anyhow::Result<String> {
    match &arguments.command {
        CheckpointsCommand::Verify(arguments) => verify(&arguments.dir),
        CheckpointsCommand::Copy(arguments) => copy::copy(arguments),
        CheckpointsCommand::Restore(arguments) => restore::restore(arguments),
        CheckpointsCommand::List(ListArgs { target, place }) => {
            place.check()?;
            if place.cluster {
                let name = target.as_deref().context("the name of an RLJob is missing")?;
                return newest(&Connection::open(&place.connection).await?, name).await;
            }
            list(Path::new(target.as_deref().unwrap_or("runs")))
        }
    }
}

async fn newest(connection: &Connection, name: &str) -> anyhow::Result<String> {
    let job = connection.job(name).await?;
    let checkpoint = job.status.and_then(|status| status.checkpoint);
    let Some(checkpoint) = checkpoint else {
        bail!("RLJob {name} has no complete checkpoint yet");
    };
    let now = Timestamp::now();
    let at = checkpoint.time.map_or_else(|| "-".to_owned(), |time| age(time.0, now));
    let row = [name.to_owned(), checkpoint.step.to_string(), at, checkpoint.path];
    Ok(table(["NAME", "STEP", "AGE", "FOLDER"], &[row]))
}

fn list(dir: &Path) -> anyhow::Result<String> {
    let row = |found: &Found| {
        let unknown = || ("-".to_owned(), "-".to_owned());
        let ((ranks, bytes), state) = match &found.manifest {
            Ok(Some(manifest)) => {
                ((manifest.world_size.to_string(), size(manifest).to_string()), "Complete")
            }
            Ok(None) => (unknown(), "Incomplete"),
            Err(_) => (unknown(), "Unreadable"),
        };
        let (step, attempt) = (found.version.step.to_string(), found.version.attempt.to_string());
        let folder = found.folder.display().to_string();
        [found.run.clone(), step, attempt, ranks, bytes, state.to_owned(), folder]
    };
    let rows: Vec<_> = find(dir)?.iter().map(row).collect();
    Ok(table(["NAME", "STEP", "ATTEMPT", "RANKS", "BYTES", "STATE", "FOLDER"], &rows))
}

fn verify(dir: &Path) -> anyhow::Result<String> {
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    for found in find(dir)? {
        let folder = found.folder.display();
        let manifest = match found.manifest {
            Ok(Some(manifest)) => manifest,
            Ok(None) => {
                lines.push(format!("{folder}: incomplete, ignored by runs"));
                continue;
            }
            Err(error) => {
                problems.push(format!("{folder}: {error}"));
                continue;
            }
        };
        let before = problems.len();
        if manifest.version != found.version {
            problems.push(format!("{folder}: its manifest is that of {}", manifest.version));
        }
        problems.extend(manifest.files.iter().filter_map(|entry| {
            let problem = problem(&found.folder, entry)?;
            Some(format!("{folder}: {}: {problem}", entry.name))
        }));
        if problems.len() == before {
            let (files, bytes) = (manifest.files.len(), size(&manifest));
            lines.push(format!("{folder}: {files} files of {bytes} bytes match the manifest"));
        }
    }
    if problems.is_empty() {
        return Ok(lines.join("\n"));
    }
    bail!(lines.into_iter().chain(problems).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rljob_protocol::checkpoint::MANIFEST_FILE;
    use serde_json::json;
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::local::inspect::test_support::{cluster_run_directory, run_directory};

    #[test]
    fn a_run_of_a_cluster_is_not_restored() {
        let runs = tempfile::tempdir().unwrap();
        let directory = cluster_run_directory(runs.path());
        let arguments = RestoreArgs { dir: directory.clone(), step: 2, discard: true };
        let expected = "lab/sums is the run of an RLJob, which this command cannot stop: start \
                        another job with restoreFrom.rljob: {name: sums, step: 2}";
        assert_eq!(restore::restore(&arguments).unwrap_err().to_string(), expected);
        assert!(!directory.join("lock").exists());
    }

    #[test]
    fn checkpoints_are_listed_and_compared_with_their_manifests() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let folder = |name: &str| {
            let folder = directory.path().join("checkpoints").join(name);
            fs::create_dir_all(&folder).unwrap();
            folder
        };
        let (complete, incomplete) = (folder("step-2.attempt-0"), folder("step-10.attempt-1"));
        folder("other");
        let manifest = |name: &str| {
            let sum = format!("{:x}", Sha256::digest("abc"));
            let manifest = json!({
                "format": 1, "version": "step-2.attempt-0", "worldSize": 1,
                "model": {"sha256": "0", "blockNumels": []},
                "optimizer": {"updates": 2, "skippedInARow": 0},
                "files": [{"name": name, "size": 3, "sha256": sum}],
            });
            fs::write(complete.join(MANIFEST_FILE), manifest.to_string()).unwrap();
        };
        manifest("rank-0.safetensors");
        let file = complete.join("rank-0.safetensors");
        fs::write(&file, "abc").unwrap();
        let complete_folder = complete.clone();
        let (complete, incomplete) = (complete.display(), incomplete.display());
        assert_eq!(
            list(runs.path()).unwrap(),
            format!(
                "NAME      STEP  ATTEMPT  RANKS  BYTES  STATE       FOLDER\n\
                 lab/sums  2     0        1      3      Complete    {complete}\n\
                 lab/sums  10    1        -      -      Incomplete  {incomplete}"
            )
        );
        let verified = || verify(runs.path()).map_err(|error| error.to_string());
        let ignored = format!("{incomplete}: incomplete, ignored by runs");
        let ok = format!("{complete}: 1 files of 3 bytes match the manifest\n{ignored}");
        assert_eq!(verified(), Ok(ok));

        let fails = |problem: &str| {
            assert_eq!(verified(), Err(format!("{ignored}\n{complete}: {problem}")));
        };
        fs::write(&file, "abd").unwrap();
        let sums = ["abd", "abc"].map(|text| format!("{:x}", Sha256::digest(text)));
        fails(&format!("rank-0.safetensors: has SHA-256 {} instead of {}", sums[0], sums[1]));
        fs::write(&file, "ab").unwrap();
        fails("rank-0.safetensors: has 2 bytes instead of 3");
        fs::remove_file(&file).unwrap();
        fails("rank-0.safetensors: cannot be read: No such file or directory (os error 2)");
        manifest("../journal.sqlite");
        fails("../journal.sqlite: is not the name of a file");
        fs::write(complete_folder.join(MANIFEST_FILE), "{").unwrap();
        assert!(verified().unwrap_err().contains("manifest.json: EOF"), "{:?}", verified());
        assert!(list(runs.path()).unwrap().contains("Unreadable"));
    }
}
