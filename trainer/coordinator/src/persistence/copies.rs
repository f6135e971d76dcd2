//! JSONL files and event files of TensorBoard in the bucket: uploaded whole during the run and at
//! its end, since object stores do not append.
//!
//! The copies are informational. When a coordinator starts on another machine, it rewrites missing
//! metrics and evaluations from the journal.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rljob_crds::names::{JSONL_FILES, TENSORBOARD_FILES};
use rljob_storage::{Bucket, RunStore, StorageError};
use tokio_util::sync::CancellationToken;

use crate::persistence::fence::Fence;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// A file is copied again when it has grown by this part of itself, so that a long run does not
/// send the same lines for ever.
const GROWN: u64 = 16;

/// Downloads the files to a machine that has none. Blocks.
pub fn fetch(run_store: &RunStore, fence: &Fence) -> Result<(), StorageError> {
    let RunStore::Bucket(bucket) = run_store else { return Ok(()) };
    for (name, path) in files(fence) {
        if path.exists() {
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|source| StorageError::Io {
                action: "create",
                place: folder.display().to_string(),
                source,
            })?;
        }
        bucket.download(name, &path)?;
    }
    Ok(())
}

/// Names of the files in the bucket, and their local paths.
fn files(fence: &Fence) -> impl Iterator<Item = (&'static str, PathBuf)> {
    let lines = JSONL_FILES.map(|name| (name, fence.file(name)));
    let events = TENSORBOARD_FILES.map(|name| (name, fence.directory().join(name)));
    lines.into_iter().chain(events)
}

/// Copies files that have grown until `stop`, then all files.
pub async fn run(run_store: RunStore, fence: Fence, stop: CancellationToken) {
    let RunStore::Bucket(bucket) = run_store else { return };
    let mut last = false;
    while !last {
        tokio::select! {
            () = stop.cancelled() => last = true,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let (bucket, fence) = (bucket.clone(), fence.clone());
        let copied = tokio::task::spawn_blocking(move || copy_all(&bucket, &fence, last)).await;
        if let Err(error) = copied {
            tracing::warn!(%error, "failed to copy files to the bucket");
        }
    }
}

/// A failed copy is retried at the next look.
fn copy_all(bucket: &Bucket, fence: &Fence, last: bool) {
    for (name, path) in files(fence) {
        if let Err(error) = copy(bucket, name, &path, last) {
            tracing::warn!(error = %crate::error_line(&error), name, "failed to copy a file to \
                the bucket");
        }
    }
}

/// Copies a file that differs from its copy: it has grown, or a superseded coordinator has
/// overwritten the copy.
fn copy(bucket: &Bucket, name: &str, path: &Path, last: bool) -> Result<(), StorageError> {
    let Ok(file) = std::fs::metadata(path) else { return Ok(()) };
    let (size, copied) = (file.len(), bucket.size(name)?.unwrap_or_default());
    let has_grown_little = size > copied && size < copied.saturating_add(copied / GROWN);
    if size == copied || has_grown_little && !last {
        return Ok(());
    }
    bucket.upload(path, name)
}
