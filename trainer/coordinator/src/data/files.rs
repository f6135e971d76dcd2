//! Dataset file selection: resolves a split to a single file or to files of a Hugging Face dataset
//! folder.
//!
//! ```text
//!  README.md with configs ─ subset, split ─▶ data_files of the config
//!  file names otherwise ─── split ─────────▶ data/train-00000-of-00002.parquet, test.jsonl …
//! ```
//!
//! As in the `datasets` library, every file belongs to `train` if no file name contains a split.
//! Must not read rows.

mod card;
mod names;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use self::card::Card;
use self::names::{by_names, is_below};
use crate::data::error::DataError;

/// In the cache of the Hugging Face Hub, the folder of a repository's commits.
const HUB_SNAPSHOTS: &str = "snapshots";

/// Split and subset to select.
#[derive(Clone, Copy, Debug)]
pub struct FileSelector<'a> {
    /// From the spec; must be absent for a single file.
    pub split: Option<&'a str>,
    /// Split of a folder if the spec sets none.
    pub default_split: &'static str,
    pub subset: Option<&'a str>,
}

/// Files of a split with the expected number of rows.
#[derive(Debug, PartialEq, Eq)]
pub struct SplitFiles {
    /// Sorted by name.
    pub paths: Vec<PathBuf>,
    /// Total rows according to `dataset_info` in README.md or dataset_info.json.
    pub rows: Option<u64>,
}

/// Selects the files at a path.
pub fn select(path: &Path, selector: FileSelector<'_>) -> Result<SplitFiles, DataError> {
    let unreadable = |source| DataError::Read { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(unreadable)?.is_dir() {
        let field = selector.split.map(|_| "split").or(selector.subset.map(|_| "subset"));
        return field.map_or_else(
            || Ok(SplitFiles { paths: vec![path.to_owned()], rows: None }),
            |field| Err(DataError::NotAFolder { path: path.to_owned(), field }),
        );
    }
    let split = selector.split.unwrap_or(selector.default_split);
    let card = Card::read(path)?;
    let (paths, splits) = match card.config(path, selector.subset)? {
        Some(config) => config.files(path, split)?,
        None => by_names(&subfolder(path, selector.subset)?, split)?,
    };
    if paths.is_empty() {
        return Err(no_split(path, split, &splits));
    }
    check_inside(path, &paths)?;
    Ok(SplitFiles { paths, rows: card.rows(path, selector.subset, split)? })
}

/// Selects the files of a dataset repository that splits need. `cards` is the folder of README.md
/// and dataset_info.json; `scratch` is created and removed.
pub fn select_remote(
    names: &[&str],
    cards: &Path,
    scratch: &Path,
    selectors: &[FileSelector<'_>],
) -> Result<BTreeSet<String>, DataError> {
    let unwritable = |source| DataError::Read { path: scratch.to_owned(), source };
    let remove = || match std::fs::remove_dir_all(scratch) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(unwritable(error)),
        _ => Ok(()),
    };
    let create = || {
        for name in names {
            let (card, path) = (cards.join(name), scratch.join(name));
            std::fs::create_dir_all(path.parent().unwrap_or(scratch))?;
            if card.is_file() {
                std::fs::copy(card, path)?;
            } else {
                std::fs::write(path, "")?;
            }
        }
        Ok(())
    };
    remove()?;
    create().map_err(unwritable)?;
    let mut selected = BTreeSet::new();
    for selector in selectors {
        let files = select(scratch, *selector)?.paths;
        let relative = files.iter().filter_map(|path| path.strip_prefix(scratch).ok());
        selected.extend(relative.map(|path| path.to_string_lossy().into_owned()));
    }
    remove()?;
    Ok(selected)
}

/// Checks that no file is outside the folder, by a link or otherwise. Files in the cache of the
/// Hugging Face Hub are links to another folder of their repository.
fn check_inside(folder: &Path, paths: &[PathBuf]) -> Result<(), DataError> {
    let canonical = |path: &Path| {
        std::fs::canonicalize(path)
            .map_err(|source| DataError::Read { path: path.to_owned(), source })
    };
    let root = canonical(folder)?;
    let repository = root
        .parent()
        .filter(|parent| parent.file_name().is_some_and(|name| name == HUB_SNAPSHOTS))
        .and_then(Path::parent);
    let root = repository.unwrap_or(&root);
    for path in paths {
        if !canonical(path)?.starts_with(root) {
            let (path, folder) = (path.clone(), folder.to_owned());
            return Err(DataError::Outside { path, folder });
        }
    }
    Ok(())
}

fn no_split(folder: &Path, split: &str, splits: &[String]) -> DataError {
    let (path, split) = (folder.to_owned(), split.to_owned());
    if splits.is_empty() {
        DataError::NoData { path }
    } else {
        DataError::NoSplit { path, split, found: splits.join(", ") }
    }
}

/// Returns the folder of a subset that README.md does not define.
fn subfolder(path: &Path, subset: Option<&str>) -> Result<PathBuf, DataError> {
    let Some(subset) = subset else { return Ok(path.to_owned()) };
    let folder = path.join(subset);
    if is_below(subset) && folder.is_dir() {
        Ok(folder)
    } else {
        Err(DataError::NoSubset {
            path: path.to_owned(),
            subset: subset.to_owned(),
            found: "none".to_owned(),
        })
    }
}
