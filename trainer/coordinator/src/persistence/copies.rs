//! JSONL files in the bucket: uploaded whole during the run and at its end, since object stores do
//! not append.
//!
//! The copies are informational. When a coordinator starts on another machine, it rewrites missing
//! metrics and evaluations from the journal.

use std::collections::BTreeMap;
use std::time::Duration;

use rljob_crds::names::JSONL_FILES;
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
    for name in JSONL_FILES {
        let path = fence.file(name);
        if !path.exists() {
            bucket.download(name, &path)?;
        }
    }
    Ok(())
}

/// Copies files that have grown until `stop`, then all files.
pub async fn run(run_store: RunStore, fence: Fence, stop: CancellationToken) {
    let RunStore::Bucket(bucket) = run_store else { return };
    let mut copied = BTreeMap::new();
    let mut last = false;
    while !last {
        tokio::select! {
            () = stop.cancelled() => last = true,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let (bucket, fence, before) = (bucket.clone(), fence.clone(), copied.clone());
        if let Ok(now) =
            tokio::task::spawn_blocking(move || copy(&bucket, &fence, before, last)).await
        {
            copied = now;
        }
    }
}

/// Returns the number of bytes of each file in the bucket. A failed copy is retried at the next
/// check. With `last`, a copy that a superseded coordinator has overwritten is replaced.
fn copy(
    bucket: &Bucket,
    fence: &Fence,
    mut copied: BTreeMap<&'static str, u64>,
    last: bool,
) -> BTreeMap<&'static str, u64> {
    for name in JSONL_FILES {
        let path = fence.file(name);
        let size = std::fs::metadata(&path).map_or(0, |file| file.len());
        let found = if last { bucket.size(name).ok().flatten() } else { None };
        let before = found.or_else(|| copied.get(name).copied()).unwrap_or_default();
        if size == before || !last && size < before + before / GROWN {
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
