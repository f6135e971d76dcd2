//! `rljob checkpoints`: lists, verifies, copies and restores checkpoints of local runs and of
//! RLJobs.

use std::path::Path;

use anyhow::bail;
use serde::Serialize;

use super::connection::{PlaceArgs, Subject};
use super::status::Output;
use super::table::table;

mod copy;
mod folder_copy;
mod found;
mod job;
mod job_restore;
mod job_verify;
mod pod_files;
mod restore;

pub use copy::CopyArgs;
use found::{Found, InBucket, find, problem, size};
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
/// A local run has its checkpoints in its folder, or in a bucket, whose clients list them. With
/// `--cluster`, the newest 100 complete checkpoints of an RLJob are shown. Needs the permission
/// to get `rljobs`.
#[derive(clap::Args, Debug)]
pub struct ListArgs {
    /// Run directory, or folder of run directories (default: `runs`); with `--cluster`, the name of
    /// an RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: Option<String>,
    /// Format of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Verify that the files of checkpoints match their manifests: names, sizes and SHA-256.
///
/// Folders without a manifest are incomplete; runs ignore them. With `--cluster`, the checkpoints
/// of an RLJob with a coordinator are read in the coordinator's container, beside the run; needs
/// the permissions to get `rljobs`, and to get and create `pods/exec`.
#[derive(clap::Args, Debug)]
pub struct VerifyArgs {
    /// Run directory, or folder of run directories (default: `runs`); with `--cluster`, the name of
    /// an RLJob.
    #[arg(value_name = "DIR|NAME", index = 1)]
    pub target: Option<String>,
    /// With `--cluster`: verify the checkpoint of this step only.
    #[arg(long, value_name = "N")]
    pub step: Option<u32>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Lists, verifies, copies or restores checkpoints; returns the lines to print.
///
/// # Errors
/// There is no run, a checkpoint does not match its manifest, or the run cannot be restored.
pub async fn checkpoints(arguments: &CheckpointsArgs) -> anyhow::Result<String> {
    match &arguments.command {
        CheckpointsCommand::Verify(VerifyArgs { target, step, place }) => {
            match place.subject(target.as_deref()).await? {
                Subject::RLJob(connection, name) => {
                    job_verify::verify(&connection, name, *step).await
                }
                Subject::Runs(_) if step.is_some() => bail!("--step needs --cluster"),
                Subject::Runs(dir) => verify(dir),
            }
        }
        CheckpointsCommand::Copy(arguments) => copy::copy(arguments).await,
        CheckpointsCommand::Restore(arguments) => restore::restore(arguments).await,
        CheckpointsCommand::List(ListArgs { target, output, place }) => {
            match place.subject(target.as_deref()).await? {
                Subject::RLJob(connection, name) => job::list(&connection, name, *output).await,
                Subject::Runs(dir) => list(dir, *output),
            }
        }
    }
}

/// A checkpoint in the output of `list`. Of one in a bucket, only name and folder are known.
#[derive(Serialize)]
struct ListRow {
    name: String,
    step: Option<u32>,
    attempt: Option<u32>,
    ranks: Option<u32>,
    bytes: Option<u64>,
    state: &'static str,
    /// Folder, or URI.
    folder: String,
}

impl ListRow {
    fn cells(&self) -> [String; 7] {
        let or_unknown = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        [
            self.name.clone(),
            or_unknown(self.step.map(|step| step.to_string())),
            or_unknown(self.attempt.map(|attempt| attempt.to_string())),
            or_unknown(self.ranks.map(|ranks| ranks.to_string())),
            or_unknown(self.bytes.map(|bytes| bytes.to_string())),
            self.state.to_owned(),
            self.folder.clone(),
        ]
    }
}

fn list(dir: &Path, output: Output) -> anyhow::Result<String> {
    let row = |found: &Found| {
        let manifest = found.manifest.as_ref().ok().and_then(Option::as_ref);
        ListRow {
            name: found.run.clone(),
            step: Some(found.version.step),
            attempt: Some(found.version.attempt),
            ranks: manifest.map(|manifest| manifest.world_size),
            bytes: manifest.map(size),
            state: match &found.manifest {
                Ok(Some(_)) => "Complete",
                Ok(None) => "Incomplete",
                Err(_) => "Unreadable",
            },
            folder: found.folder.display().to_string(),
        }
    };
    let in_bucket = |InBucket { run, uri }: InBucket| ListRow {
        name: run,
        step: None,
        attempt: None,
        ranks: None,
        bytes: None,
        state: "InBucket",
        folder: uri,
    };
    let runs = find(dir)?;
    let mut rows: Vec<_> = runs.found.iter().map(row).collect();
    rows.extend(runs.in_buckets.into_iter().map(in_bucket));
    output.format(&rows, || {
        let cells: Vec<_> = rows.iter().map(ListRow::cells).collect();
        table(["NAME", "STEP", "ATTEMPT", "RANKS", "BYTES", "STATE", "FOLDER"], &cells)
    })
}

fn verify(dir: &Path) -> anyhow::Result<String> {
    let (runs, mut problems) = (find(dir)?, Vec::new());
    let not_verified = |other: &InBucket| {
        format!("{}: in a bucket, verified by the coordinator before a run resumes", other.uri)
    };
    let mut lines: Vec<String> = runs.in_buckets.iter().map(not_verified).collect();
    for found in runs.found {
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
    use crate::local::inspect::test_support::run_directory;

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
            list(runs.path(), Output::Text).unwrap(),
            format!(
                "NAME      STEP  ATTEMPT  RANKS  BYTES  STATE       FOLDER\n\
                 lab/sums  2     0        1      3      Complete    {complete}\n\
                 lab/sums  10    1        -      -      Incomplete  {incomplete}"
            )
        );
        let rows: serde_json::Value =
            serde_json::from_str(&list(runs.path(), Output::Json).unwrap()).unwrap();
        assert_eq!(
            rows[0],
            json!({
                "name": "lab/sums", "step": 2, "attempt": 0, "ranks": 1, "bytes": 3,
                "state": "Complete", "folder": complete.to_string(),
            })
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
        assert!(list(runs.path(), Output::Text).unwrap().contains("Unreadable"));
    }

    #[test]
    fn a_run_in_a_bucket_does_not_hide_checkpoints_of_other_runs() {
        let runs = tempfile::tempdir().unwrap();
        let directory = run_directory(runs.path());
        let folder = directory.path().join("checkpoints/step-2.attempt-0");
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str| runs.path().join("lab").join(name).join("run.json");
        let mut config: serde_json::Value =
            serde_json::from_slice(&fs::read(file("sums")).unwrap()).unwrap();
        config["name"] = json!("other");
        config["bucket"] =
            json!({"bucket": "runs", "prefix": "team/lab/other", "region": "us-east-1"});
        fs::create_dir(runs.path().join("lab/other")).unwrap();
        fs::write(file("other"), config.to_string()).unwrap();
        let folder = folder.display();
        let uri = "s3://runs/team/lab/other/checkpoints";
        assert_eq!(
            list(runs.path(), Output::Text).unwrap(),
            format!(
                "NAME       STEP  ATTEMPT  RANKS  BYTES  STATE       FOLDER\n\
                 lab/sums   2     0        -      -      Incomplete  {folder}\n\
                 lab/other  -     -        -      -      InBucket    {uri}"
            )
        );
        let verified = verify(runs.path()).unwrap();
        let expected = format!(
            "{uri}: in a bucket, verified by the coordinator before a run resumes\n\
             {folder}: incomplete, ignored by runs"
        );
        assert_eq!(verified, expected);
    }
}
