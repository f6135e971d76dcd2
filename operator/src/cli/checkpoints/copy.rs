//! `rljob checkpoints copy`: copies a checkpoint of a local run out of its folder, verified.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rljob_protocol::checkpoint::{FileEntry, MANIFEST_FILE, Manifest, POSITION_FILE};
use sha2::{Digest, Sha256};

use super::found::{Found, find, is_in_folder, size};
use crate::local::inspect::find_one;

/// Bytes of a read.
const CHUNK: usize = 1 << 20;

/// Copy a checkpoint of a local run to a folder, from which other jobs start with `restoreFrom`.
///
/// Files are compared with the manifest while they are copied; the manifest is written last. The
/// run may be active. Exports are folders that any program copies.
#[derive(clap::Args, Debug)]
pub struct CopyArgs {
    /// Run directory, or a folder with one run (default: `runs`).
    #[arg(value_name = "DIR", default_value = "runs", hide_default_value = true)]
    pub dir: PathBuf,
    /// Step of the checkpoint. Default: the newest complete one.
    #[arg(long, value_name = "N")]
    pub step: Option<u32>,
    /// Folder in which `step-N.attempt-K` is created.
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
}

/// Copies the checkpoint; returns the line to print.
///
/// # Errors
/// There is no such checkpoint, it does not match its manifest, or the copy exists or cannot be
/// written. What was copied is removed then.
pub fn copy(arguments: &CopyArgs) -> anyhow::Result<String> {
    let directory = find_one(&arguments.dir)?;
    let (from, manifest) = chosen(&directory, arguments.step)?;
    let target = std::path::absolute(&arguments.to)
        .with_context(|| format!("failed to resolve {}", arguments.to.display()))?
        .join(manifest.version.to_string());
    ensure!(target.symlink_metadata().is_err(), "{} exists already", target.display());
    let failed = || format!("failed to create {}", target.display());
    fs::create_dir_all(&arguments.to).with_context(failed)?;
    fs::create_dir(&target).with_context(failed)?;
    if let Err(error) = copy_files(&from, &target, &manifest) {
        // The error of the copy is the cause.
        let _ = fs::remove_dir_all(&target);
        return Err(error.context(format!("failed to copy {}", from.display())));
    }
    Ok(format!(
        "{}: {} files of {} bytes match the manifest; a job starts from it with restoreFrom.path",
        target.display(),
        manifest.files.len(),
        size(&manifest)
    ))
}

/// Folder and manifest of the newest complete checkpoint, or of that of a step.
fn chosen(directory: &Path, step: Option<u32>) -> anyhow::Result<(PathBuf, Manifest)> {
    let of_step = |found: &Found| step.is_none_or(|step| found.version.step == step);
    for Found { folder, version, manifest, .. } in
        find(directory)?.into_iter().filter(of_step).rev()
    {
        match manifest {
            Ok(Some(manifest)) if manifest.version == version => return Ok((folder, manifest)),
            Ok(Some(other)) => {
                bail!("{}: its manifest is that of {}", folder.display(), other.version)
            }
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

/// The manifest commits the copy, as that of a learner does.
fn copy_files(from: &Path, target: &Path, manifest: &Manifest) -> anyhow::Result<()> {
    for entry in &manifest.files {
        copy_file(from, target, entry).with_context(|| entry.name.clone())?;
    }
    for name in [POSITION_FILE, MANIFEST_FILE] {
        match fs::read(from.join(name)) {
            // A run without rollouts has no position.
            Err(error) if error.kind() == ErrorKind::NotFound && name == POSITION_FILE => continue,
            bytes => write_durably(&target.join(name), &bytes?),
        }
        .with_context(|| name.to_owned())?;
        File::open(target)?.sync_all()?;
    }
    Ok(())
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Copies a file and compares what was read with its entry.
fn copy_file(from: &Path, target: &Path, entry: &FileEntry) -> anyhow::Result<()> {
    ensure!(is_in_folder(entry), "is not the name of a file");
    let mut source = File::open(from.join(&entry.name))?;
    let mut copy = File::create_new(target.join(&entry.name))?;
    let (mut hash, mut bytes, mut chunk) = (Sha256::new(), 0_u64, vec![0; CHUNK]);
    loop {
        let read = source.read(&mut chunk)?;
        let Some(read) = chunk.get(..read).filter(|read| !read.is_empty()) else { break };
        hash.update(read);
        copy.write_all(read)?;
        bytes = bytes.saturating_add(read.len() as u64);
        ensure!(bytes <= entry.size, "has more than {} bytes", entry.size);
    }
    ensure!(bytes == entry.size, "has {bytes} bytes instead of {}", entry.size);
    let sum = format!("{:x}", hash.finalize());
    ensure!(sum == entry.sha256, "has SHA-256 {sum} instead of {}", entry.sha256);
    Ok(copy.sync_all()?)
}
