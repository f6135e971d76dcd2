//! Splits by file names, for folders whose README.md does not list files.

use std::path::{Path, PathBuf};

use crate::data::error::DataError;

/// Maximum depth of subfolders that are searched.
const MAX_DEPTH: u32 = 4;
/// Split names and the words in file names that select them.
const KEYWORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
    ("validation", &["validation", "valid", "dev", "val"]),
];

/// Returns the files whose names contain the split's words, and the names of all splits.
pub fn by_names(folder: &Path, split: &str) -> Result<(Vec<PathBuf>, Vec<String>), DataError> {
    let mut all = Vec::new();
    walk(folder, 0, &mut all)?;
    all.sort_unstable();
    let mut files: Vec<(String, PathBuf)> = Vec::new();
    for path in &all {
        let name = path.strip_prefix(folder).unwrap_or(path).to_string_lossy().to_lowercase();
        let found = split_of(&name, split);
        files.extend(found.map(|split| (split, path.clone())));
    }
    if files.is_empty() {
        files = all.into_iter().map(|path| ("train".to_owned(), path)).collect();
    }
    let mut splits: Vec<String> = files.iter().map(|(split, _)| split.clone()).collect();
    splits.sort_unstable();
    splits.dedup();
    Ok((
        files.into_iter().filter(|(found, _)| found == split).map(|(_, path)| path).collect(),
        splits,
    ))
}

/// Split of a file name: the selected split if the name contains it, else by keyword.
fn split_of(name: &str, selected: &str) -> Option<String> {
    let words: Vec<&str> = name.split(|character: char| !character.is_alphanumeric()).collect();
    if words.contains(&selected.to_lowercase().as_str()) {
        return Some(selected.to_owned());
    }
    let keyword = KEYWORDS
        .iter()
        .find(|(_, keywords)| keywords.iter().any(|keyword| words.contains(keyword)));
    keyword.map(|(split, _)| (*split).to_owned())
}

fn walk(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let unreadable = |source| DataError::Read { path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() && !hidden && depth < MAX_DEPTH {
            walk(&path, depth.saturating_add(1), found)?;
        } else if !hidden && is_data(&path) {
            found.push(path);
        }
    }
    Ok(())
}

fn is_data(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        ["parquet", "jsonl"].iter().any(|known| extension.eq_ignore_ascii_case(known))
    })
}

/// Whether a relative path does not leave its folder.
pub fn is_below(path: &str) -> bool {
    !Path::new(path).is_absolute() && !path.split('/').any(|part| part == "..")
}
