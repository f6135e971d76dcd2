//! JSONL files in the bucket: uploaded whole during the run and at its end, since object stores do
//! not append.
//!
//! The copies are informational. When a coordinator starts on another machine, it rewrites missing
//! metrics and evaluations from the journal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rljob_crds::names::{EVALUATION_SAMPLES_FILE, EVALUATIONS_FILE, METRICS_FILE, SAMPLES_FILE};
use rljob_storage::{Bucket, RunStore, StorageError};
use tokio_util::sync::CancellationToken;

const FILES: [&str; 4] = [METRICS_FILE, EVALUATIONS_FILE, SAMPLES_FILE, EVALUATION_SAMPLES_FILE];
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// A file is copied again when it has grown by this part of itself, so that a long run does not
/// send the same lines for ever.
const GROWN: u64 = 16;

/// Brings the files to a machine that has none. Blocks.
pub fn fetch(run_store: &RunStore, run_directory: &Path) -> Result<(), StorageError> {
    let RunStore::Bucket(bucket) = run_store else { return Ok(()) };
    for name in FILES {
        let path = run_directory.join(name);
        if !path.exists()
            && let Some(bytes) = bucket.read(name)?
        {
            std::fs::write(&path, bytes).map_err(|source| StorageError::Io {
                action: "write",
                place: path.display().to_string(),
                source,
            })?;
        }
    }
    Ok(())
}

/// Copies files that have grown until `stop`, then all files.
pub async fn run(run_store: RunStore, run_directory: PathBuf, stop: CancellationToken) {
    let RunStore::Bucket(bucket) = run_store else { return };
    let mut copied = BTreeMap::new();
    let mut last = false;
    while !last {
        tokio::select! {
            () = stop.cancelled() => last = true,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let (bucket, directory, before) = (bucket.clone(), run_directory.clone(), copied.clone());
        if let Ok(now) =
            tokio::task::spawn_blocking(move || copy(&bucket, &directory, before, last)).await
        {
            copied = now;
        }
    }
}

/// Returns the number of bytes of each file in the bucket. A failed copy is retried at the next
/// check.
fn copy(
    bucket: &Bucket,
    directory: &Path,
    mut copied: BTreeMap<&'static str, u64>,
    all: bool,
) -> BTreeMap<&'static str, u64> {
    for name in FILES {
        let path = directory.join(name);
        let size = std::fs::metadata(&path).map_or(0, |file| file.len());
        let before = copied.get(name).copied().unwrap_or_default();
        if size == before || !all && size < before + before / GROWN {
            continue;
        }
        match bucket.upload(&path, name) {
            Ok(()) => _ = copied.insert(name, size),
            Err(error) => {
                tracing::warn!(error = %crate::error_line(&error), "failed to copy a file to \
                    the bucket");
            }
        }
    }
    copied
}
