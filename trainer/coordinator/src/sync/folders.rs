//! Retention of published weights: the newest two folders are kept for engines that are still
//! reading the older one.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rljob_crds::names::WEIGHTS_DIR;

const KEEP: usize = 2;

/// Removes all but the newest two folders of the run directory's `weights`. Blocks. Answers what
/// was removed.
pub fn prune(run_directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    let entries = match std::fs::read_dir(run_directory.join(WEIGHTS_DIR)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(folders),
        Err(error) => return Err(error),
    };
    let mut dated: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in entries {
        let entry = entry?;
        dated.push((entry.metadata()?.modified()?, entry.path()));
    }
    dated.sort();
    dated.truncate(dated.len().saturating_sub(KEEP));
    for (_, folder) in dated {
        std::fs::remove_dir_all(&folder)?;
        folders.push(folder);
    }
    Ok(folders)
}
