//! Verified copies of checkpoints: files are compared with the manifest while they are copied, and
//! the manifest, which commits the copy, is written last.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rljob_protocol::checkpoint::{FileEntry, MANIFEST_FILE, Manifest, POSITION_FILE};
use rljob_protocol::version::Version;
use sha2::{Digest, Sha256};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::found::{is_in_folder, size};
use super::pod_files::{Opened, PodFiles};

/// Bytes of a read.
const CHUNK: usize = 1 << 20;

/// Files of a checkpoint.
pub enum Source {
    Folder(PathBuf),
    /// In the storage of a running RLJob.
    Pod(Box<PodFiles>),
}

impl Source {
    async fn open(&self, name: &str) -> anyhow::Result<Opened> {
        match self {
            Self::Folder(folder) => Ok(Opened::file(File::open(folder.join(name)).await?)),
            Self::Pod(files) => files.open(name).await,
        }
    }

    /// Reads a small file; `None` if it does not exist. A pod returns `null` then.
    async fn read(&self, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let mut opened = match self.open(name).await {
            Err(error) if is_not_found(&error) => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        opened.reader.read_to_end(&mut bytes).await?;
        opened.finish().await?;
        ensure!(!bytes.is_empty(), "is empty: repeat the copy");
        Ok(Some(bytes).filter(|bytes| bytes != b"null"))
    }

    /// Reads the manifest of the checkpoint.
    async fn manifest(&self, version: Version) -> anyhow::Result<(Manifest, Vec<u8>)> {
        let bytes = self.read(MANIFEST_FILE).await.context(MANIFEST_FILE)?;
        let bytes = bytes.with_context(|| format!("{MANIFEST_FILE} does not exist"))?;
        let manifest: Manifest = serde_json::from_slice(&bytes).context(MANIFEST_FILE)?;
        ensure!(manifest.version == version, "its manifest is that of {}", manifest.version);
        Ok((manifest, bytes))
    }
}

fn is_not_found(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Folder of the copy of a checkpoint below `to`.
///
/// # Errors
/// It exists.
pub fn target(to: &Path, version: Version) -> anyhow::Result<PathBuf> {
    let target = std::path::absolute(to)
        .with_context(|| format!("failed to resolve {}", to.display()))?
        .join(version.to_string());
    ensure!(
        target.symlink_metadata().is_err(),
        "{} exists already: name another folder with --to",
        target.display()
    );
    Ok(target)
}

/// Copies a checkpoint; returns the line to print.
///
/// # Errors
/// A file does not match the manifest, or cannot be read or written. What was copied is removed
/// then.
pub async fn copy(source: &Source, version: Version, target: &Path) -> anyhow::Result<String> {
    let (manifest, bytes) = source.manifest(version).await?;
    let failed = || format!("failed to create {}", target.display());
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).await.with_context(failed)?;
    }
    fs::create_dir(target).await.with_context(failed)?;
    if let Err(error) = copy_files(source, &manifest, bytes, target).await {
        // The error of the copy is the cause.
        let _ = fs::remove_dir_all(target).await;
        return Err(error);
    }
    Ok(format!(
        "{}: {} files of {} bytes match the manifest; a job starts from it with restoreFrom.path",
        target.display(),
        manifest.files.len(),
        size(&manifest)
    ))
}

async fn copy_files(
    source: &Source,
    manifest: &Manifest,
    manifest_bytes: Vec<u8>,
    target: &Path,
) -> anyhow::Result<()> {
    for entry in &manifest.files {
        copy_file(source, target, entry).await.with_context(|| entry.name.clone())?;
    }
    // A run without rollouts has no position.
    let position = source.read(POSITION_FILE).await.context(POSITION_FILE)?;
    for (name, bytes) in [(POSITION_FILE, position), (MANIFEST_FILE, Some(manifest_bytes))] {
        let Some(bytes) = bytes else { continue };
        write_durably(&target.join(name), &bytes).await.context(name)?;
        File::open(target).await?.sync_all().await?;
    }
    Ok(())
}

async fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create_new(path).await?;
    file.write_all(bytes).await?;
    file.flush().await?;
    file.sync_all().await
}

/// Copies a file and compares what was read with its entry.
async fn copy_file(source: &Source, target: &Path, entry: &FileEntry) -> anyhow::Result<()> {
    ensure!(is_in_folder(entry), "is not the name of a file");
    let mut opened = source.open(&entry.name).await?;
    let mut copy = File::create_new(target.join(&entry.name)).await?;
    let (mut hash, mut bytes, mut chunk) = (Sha256::new(), 0_u64, vec![0; CHUNK]);
    loop {
        let read = opened.reader.read(&mut chunk).await?;
        let Some(read) = chunk.get(..read).filter(|read| !read.is_empty()) else { break };
        hash.update(read);
        copy.write_all(read).await?;
        bytes = bytes.saturating_add(read.len() as u64);
        ensure!(bytes <= entry.size, "has more than {} bytes", entry.size);
    }
    opened.finish().await?;
    ensure!(bytes == entry.size, "has {bytes} bytes instead of {}", entry.size);
    let sum = format!("{:x}", hash.finalize());
    ensure!(sum == entry.sha256, "has SHA-256 {sum} instead of {}", entry.sha256);
    copy.flush().await?;
    Ok(copy.sync_all().await?)
}
