//! Checkpoints on the disk: complete is what has a manifest, which is written last and removed first.

use std::collections::BTreeSet;
use std::io::{Error, ErrorKind};
use std::path::Path;

use rljob_crds::names::CHECKPOINTS_DIR;
use rljob_protocol::version::Version;

/// Written last into a checkpoint's folder.
pub const MANIFEST: &str = "manifest.json";

/// Complete checkpoints of a run directory; none if it cannot be read, so that nobody takes an unreadable volume for an empty one. Blocks shortly.
pub fn complete(run_directory: &Path) -> Option<BTreeSet<Version>> {
    match folders(run_directory) {
        Ok(versions) => Some(versions.into_iter().filter(|(_, complete)| *complete).map(|(version, _)| version).collect()),
        Err(error) => {
            tracing::warn!(%error, "failed to list the checkpoints");
            None
        }
    }
}

/// Removes what the policy does not keep: of the complete ones all but the newest `keep_last`, of the others those of attempts before `attempt`,
/// which nobody writes any more. Answers the kept ones. Blocks.
pub fn prune(run_directory: &Path, keep_last: u32, attempt: u32) -> std::io::Result<BTreeSet<Version>> {
    let (complete, torn): (Vec<_>, Vec<_>) = folders(run_directory)?.into_iter().partition(|(_, complete)| *complete);
    let complete: BTreeSet<Version> = complete.into_iter().map(|(version, _)| version).collect();
    let (old, kept) = split(&complete, keep_last);
    let torn = torn.into_iter().map(|(version, _)| version).filter(|version| version.attempt < attempt);
    for version in old.into_iter().chain(torn) {
        let folder = run_directory.join(CHECKPOINTS_DIR).join(version.to_string());
        match std::fs::remove_file(folder.join(MANIFEST)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => std::fs::remove_dir_all(&folder)?,
        }
    }
    Ok(kept)
}

/// (old, kept): the newest `keep_last`, at least one, are kept.
fn split(complete: &BTreeSet<Version>, keep_last: u32) -> (BTreeSet<Version>, BTreeSet<Version>) {
    let first_kept = complete.len().saturating_sub(keep_last.max(1) as usize);
    let (old, kept): (Vec<_>, Vec<_>) = complete.iter().copied().enumerate().partition(|(index, _)| *index < first_kept);
    (old.into_iter().map(|(_, version)| version).collect(), kept.into_iter().map(|(_, version)| version).collect())
}

/// Every checkpoint folder, and whether it is complete. Other names are not ours.
fn folders(run_directory: &Path) -> std::io::Result<Vec<(Version, bool)>> {
    let entries = match std::fs::read_dir(run_directory.join(CHECKPOINTS_DIR)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::new(error.kind(), format!("failed to list checkpoints: {error}")))?;
        if let Some(version) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push((version, entry.path().join(MANIFEST).is_file()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(run: &Path, name: &str, complete: bool) {
        let folder = run.join(CHECKPOINTS_DIR).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("rank-0.safetensors"), b"x").unwrap();
        if complete {
            std::fs::write(folder.join(MANIFEST), b"{}").unwrap();
        }
    }

    #[test]
    fn old_and_torn_checkpoints_are_removed_and_the_newest_and_unfinished_are_kept() {
        let run = tempfile::tempdir().unwrap();
        for (name, complete) in [
            ("step-2.attempt-0", true),
            ("step-4.attempt-0", true),
            ("step-4.attempt-1", true),
            ("step-5.attempt-0", false),
            ("step-6.attempt-1", false),
            ("notes", true),
        ] {
            checkpoint(run.path(), name, complete);
        }
        let kept = prune(run.path(), 2, 1).unwrap();
        assert_eq!(kept, BTreeSet::from([Version { step: 4, attempt: 0 }, Version { step: 4, attempt: 1 }]));
        let mut left: Vec<_> =
            std::fs::read_dir(run.path().join(CHECKPOINTS_DIR)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["notes", "step-4.attempt-0", "step-4.attempt-1", "step-6.attempt-1"]);
        assert_eq!(complete(run.path()), Some(kept));
    }
}
