//! Retention of published weights: the newest two folders are kept for engines that are still
//! reading the older one, and those of evaluations that wait for evaluation engines.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rljob_crds::names::{EVALUATION_WEIGHTS_DIR, WEIGHTS_DIR};
use rljob_protocol::version::Version;

const KEEP: usize = 2;

/// Removes the folders of evaluated weights that are `unused`, and what their writers left. Blocks.
pub fn prune_evaluations(
    run_directory: &Path,
    unused: impl Fn(Version) -> bool,
) -> std::io::Result<()> {
    for (name, path) in entries(&run_directory.join(EVALUATION_WEIGHTS_DIR))? {
        if version(&name).is_some_and(&unused) {
            std::fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// Removes all but the newest two folders of the run directory's `weights`. Blocks. Answers what
/// was removed.
pub fn prune(run_directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    let mut dated: Vec<(SystemTime, PathBuf)> = Vec::new();
    for (_, path) in entries(&run_directory.join(WEIGHTS_DIR))? {
        dated.push((path.metadata()?.modified()?, path));
    }
    dated.sort();
    dated.truncate(dated.len().saturating_sub(KEEP));
    for (_, folder) in dated {
        std::fs::remove_dir_all(&folder)?;
        folders.push(folder);
    }
    Ok(folders)
}

/// Names and paths of the entries of a folder; none if it does not exist.
fn entries(folder: &Path) -> std::io::Result<Vec<(String, PathBuf)>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let named = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    };
    entries.map(named).collect()
}

/// Version of a folder named `step-N.attempt-K`, or of an unfinished one, whose name has more
/// parts.
fn version(name: &str) -> Option<Version> {
    let mut parts = name.splitn(3, '.');
    format!("{}.{}", parts.next()?, parts.next()?).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{entries, prune_evaluations};
    use rljob_crds::names::EVALUATION_WEIGHTS_DIR;

    #[test]
    fn unused_folders_of_evaluations_are_removed_with_unfinished_ones() {
        let run = tempfile::tempdir().unwrap();
        let unused = |version: rljob_protocol::version::Version| version.step < 10;
        prune_evaluations(run.path(), unused).unwrap();
        let folder = run.path().join(EVALUATION_WEIGHTS_DIR);
        let names = [
            "step-5.attempt-0",
            "step-5.attempt-1.step-5.attempt-1.partial",
            "step-10.attempt-0",
            "notes",
        ];
        for name in names {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        prune_evaluations(run.path(), unused).unwrap();
        let mut left: Vec<String> =
            entries(&folder).unwrap().into_iter().map(|(name, _)| name).collect();
        left.sort();
        assert_eq!(left, ["notes", "step-10.attempt-0"]);
    }
}
