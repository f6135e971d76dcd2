//! Exports made while training goes on, on the disk: `exports/step-N` is complete when its marker is in it, which comes with the folder and is removed first.

use std::collections::BTreeSet;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use rljob_crds::names::{EXPORT_COMPLETE_FILE, EXPORTS_DIR};

/// A folder under `exports`.
struct Folder {
    step: u32,
    path: PathBuf,
    complete: bool,
}

/// The newest step with a complete export; 0 without one. Blocks shortly.
pub fn newest(run_directory: &Path) -> std::io::Result<u32> {
    Ok(folders(run_directory)?.iter().filter(|folder| folder.complete).map(|folder| folder.step).max().unwrap_or(0))
}

/// Removes all complete exports but the newest `keep_last`, at least one, and what was left of others before the newest. Blocks.
pub fn prune(run_directory: &Path, keep_last: u32) -> std::io::Result<()> {
    let folders = folders(run_directory)?;
    let complete: BTreeSet<u32> = folders.iter().filter(|folder| folder.complete).map(|folder| folder.step).collect();
    let kept: BTreeSet<u32> = complete.iter().rev().take(keep_last.max(1) as usize).copied().collect();
    let is_old = |folder: &&Folder| if folder.complete { !kept.contains(&folder.step) } else { complete.last() > Some(&folder.step) };
    for folder in folders.iter().filter(is_old) {
        match std::fs::remove_file(folder.path.join(EXPORT_COMPLETE_FILE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => std::fs::remove_dir_all(&folder.path)?,
        }
    }
    Ok(())
}

/// Every `step-N`, and every `step-N.partial`, which is being written or was when its writer was killed. Other names are not ours.
fn folders(run_directory: &Path) -> std::io::Result<Vec<Folder>> {
    let entries = match std::fs::read_dir(run_directory.join(EXPORTS_DIR)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::new(error.kind(), format!("failed to list exports: {error}")))?;
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("step-")) else { continue };
        let whole = name.strip_suffix(".partial").unwrap_or(name);
        if let Some(step) = whole.parse::<u32>().ok().filter(|step| step.to_string() == whole) {
            found.push(Folder { step, complete: whole == name && path.join(EXPORT_COMPLETE_FILE).is_file(), path });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{EXPORT_COMPLETE_FILE, EXPORTS_DIR, newest, prune};

    #[test]
    fn the_newest_exports_and_what_is_being_written_are_kept_and_the_rest_is_removed() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(newest(run.path()).unwrap(), 0);
        prune(run.path(), 2).unwrap();
        let exports = run.path().join(EXPORTS_DIR);
        // Complete; torn, as a kill in the middle of a removal leaves it; killed before it had its name; being written.
        for (name, complete) in [
            ("step-5", true),
            ("step-10", true),
            ("step-15", false),
            ("step-20", true),
            ("step-10.partial", true),
            ("step-25.partial", true),
            ("step-007", true),
            ("notes", true),
        ] {
            std::fs::create_dir_all(exports.join(name)).unwrap();
            std::fs::write(exports.join(name).join("model.safetensors"), "").unwrap();
            if complete {
                std::fs::write(exports.join(name).join(EXPORT_COMPLETE_FILE), "{}").unwrap();
            }
        }
        assert_eq!(newest(run.path()).unwrap(), 20);
        prune(run.path(), 2).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(&exports).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["notes", "step-007", "step-10", "step-20", "step-25.partial"]);
        prune(run.path(), 0).unwrap();
        assert!(!exports.join("step-10").exists() && exports.join("step-20").exists());
    }
}
