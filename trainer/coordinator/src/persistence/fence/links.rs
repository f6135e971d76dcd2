//! Files that are named by process, and the symbolic links by which readers find the current ones.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// `metrics.jsonl` becomes `metrics-3-1f.jsonl` for the process with journal `journal-3-1f.sqlite`.
pub(super) fn name_of_process(file: &str, journal: &str) -> String {
    let process = journal.strip_prefix("journal").and_then(|rest| rest.strip_suffix(".sqlite"));
    let (stem, extension) = file.rsplit_once('.').unwrap_or((file, ""));
    format!("{stem}{}.{extension}", process.unwrap_or_default())
}

/// The epoch in the name of a process's file.
fn epoch(name: &str) -> Option<u64> {
    let (stem, _) = name.rsplit_once('.').filter(|_| !name.contains('/'))?;
    let (process, _) = stem.rsplit_once('-')?;
    process.rsplit_once('-')?.1.parse().ok()
}

/// Makes `link` a symbolic link to `target`, a file of this process in the same directory, and
/// removes the file of an earlier process that it named. Keeps a link to the file of a later
/// process. Atomic: readers find a file at any time.
///
/// # Errors
/// The link cannot be written.
pub fn relink(link: &Path, target: &str) -> std::io::Result<()> {
    let found = std::fs::read_link(link).ok().and_then(|found| Some(found.to_str()?.to_owned()));
    let found_epoch = found.as_deref().and_then(epoch);
    if found.as_deref() == Some(target) || found_epoch > epoch(target) {
        return Ok(());
    }
    let new = PathBuf::from(format!("{}.link", link.display()));
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::fs::symlink(target, &new)?;
    std::fs::rename(&new, link)?;
    if let Some(earlier) = found.filter(|_| found_epoch.is_some() && found_epoch < epoch(target)) {
        // A file that cannot be removed only occupies space.
        let _ = std::fs::remove_file(link.with_file_name(earlier));
    }
    Ok(())
}
