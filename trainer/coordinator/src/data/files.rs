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

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::data::error::DataError;

/// Maximum depth of subfolders that are searched.
const MAX_DEPTH: u32 = 4;
/// In the cache of the Hugging Face Hub, the folder of a repository's commits.
const HUB_SNAPSHOTS: &str = "snapshots";
/// Maximum size of README.md and dataset_info.json in bytes.
const MAX_CARD: u64 = 16 << 20;
/// Maximum depth of lists and objects in README.md.
const MAX_NESTING: usize = 128;
/// Split names and the words in file names that select them.
const KEYWORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
    ("validation", &["validation", "valid", "dev", "val"]),
];

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

/// Whether a relative path does not leave its folder.
fn is_below(path: &str) -> bool {
    !Path::new(path).is_absolute() && !path.split('/').any(|part| part == "..")
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

/// Dataset card: the fields used from the front matter of README.md.
#[derive(Deserialize, Default)]
struct Card {
    #[serde(default)]
    configs: Vec<Config>,
    #[serde(default)]
    dataset_info: Option<OneOrMany<Info>>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(rename = "config_name")]
    name: String,
    #[serde(default)]
    default: bool,
    data_files: Option<OneOrMany<DataFile>>,
    data_dir: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// A pattern of files of `train`, or a named split with its patterns.
#[derive(Deserialize)]
#[serde(untagged)]
enum DataFile {
    Pattern(String),
    Split { split: String, path: OneOrMany<String> },
}

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    config_name: Option<String>,
    #[serde(default)]
    splits: Splits,
}

/// A list in README.md or a map in dataset_info.json.
#[derive(Deserialize)]
#[serde(untagged)]
enum Splits {
    List(Vec<SplitInfo>),
    Map(std::collections::BTreeMap<String, SplitInfo>),
}

impl Default for Splits {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

#[derive(Deserialize)]
struct SplitInfo {
    #[serde(default)]
    name: String,
    num_examples: Option<u64>,
}

impl Card {
    fn read(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join("README.md");
        let Some(text) = read_optional(&path)? else { return Ok(Self::default()) };
        let Some(front_matter) = front_matter(&text) else { return Ok(Self::default()) };
        if is_deep(front_matter) {
            let message = format!("more than {MAX_NESTING} nested lists or objects");
            return Err(DataError::Card { path, message });
        }
        serde_yaml::from_str(front_matter)
            .map_err(|error| DataError::Card { path, message: error.to_string() })
    }

    /// Returns the selected config; `None` if README.md has no configs.
    fn config(&self, folder: &Path, subset: Option<&str>) -> Result<Option<&Config>, DataError> {
        if self.configs.is_empty() {
            return Ok(None);
        }
        let path = folder.to_owned();
        let names: Vec<&str> = self.configs.iter().map(|config| config.name.as_str()).collect();
        let found = names.join(", ");
        let config = match subset {
            Some(subset) => {
                let named = self.configs.iter().find(|config| config.name == subset);
                return named.map(Some).ok_or(DataError::NoSubset {
                    path,
                    subset: subset.to_owned(),
                    found,
                });
            }
            None => self
                .configs
                .iter()
                .find(|config| config.default)
                .or_else(|| self.configs.iter().find(|config| config.name == "default")),
        };
        match (config, self.configs.as_slice()) {
            (Some(config), _) | (None, [config]) => Ok(Some(config)),
            _ => Err(DataError::NoDefaultSubset { path, found }),
        }
    }

    /// Expected number of rows of a split.
    fn rows(
        &self,
        folder: &Path,
        subset: Option<&str>,
        split: &str,
    ) -> Result<Option<u64>, DataError> {
        let path = folder.join("dataset_info.json");
        let file: Option<Info> = match read_optional(&path)? {
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| DataError::Card { path, message: error.to_string() })?,
            None => None,
        };
        let infos = self.dataset_info.as_ref().map_or(&[][..], OneOrMany::as_slice);
        let unnamed = |info: &Info| {
            infos.len() == 1 || matches!(info.config_name.as_deref(), None | Some("default"))
        };
        let matches = |info: &&Info| {
            subset
                .map_or_else(|| unnamed(info), |subset| info.config_name.as_deref() == Some(subset))
        };
        let rows = |info: &Info| match &info.splits {
            Splits::List(list) => {
                list.iter().find(|info| info.name == split).and_then(|info| info.num_examples)
            }
            Splits::Map(map) => map.get(split).and_then(|info| info.num_examples),
        };
        Ok(infos
            .iter()
            .find(matches)
            .and_then(rows)
            .or_else(|| file.as_ref().filter(matches).and_then(rows)))
    }
}

impl Config {
    /// Returns the files of a split and the names of all splits.
    fn files(&self, folder: &Path, split: &str) -> Result<(Vec<PathBuf>, Vec<String>), DataError> {
        let below = self.data_dir.as_deref().unwrap_or_default();
        if !is_below(below) {
            return Err(DataError::Card {
                path: folder.join("README.md"),
                message: format!("data_dir `{below}` must be a path below the folder"),
            });
        }
        let folder = folder.join(below);
        let Some(data_files) = &self.data_files else { return by_names(&folder, split) };
        let (mut paths, mut splits) = (Vec::new(), Vec::new());
        for file in data_files.as_slice() {
            let (name, patterns) = match file {
                DataFile::Pattern(pattern) => ("train", std::slice::from_ref(pattern)),
                DataFile::Split { split, path } => (split.as_str(), path.as_slice()),
            };
            if name == split {
                for pattern in patterns {
                    paths.extend(matching(&folder, pattern)?);
                }
            }
            splits.push(name.to_owned());
        }
        splits.dedup();
        Ok((paths, splits))
    }
}

/// Files below a folder that match a pattern with `*` and `**`, sorted by name.
fn matching(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let wrong = |message: String| DataError::Card {
        path: folder.join("README.md"),
        message: format!("data_files `{pattern}`: {message}"),
    };
    if !is_below(pattern) || pattern.contains("://") {
        return Err(wrong("must be a path below the folder".to_owned()));
    }
    let whole = format!("{}/{pattern}", glob::Pattern::escape(&folder.display().to_string()));
    let found = glob::glob(&whole).map_err(|error| wrong(error.to_string()))?;
    let paths: Result<Vec<PathBuf>, _> = found.collect();
    let paths = paths
        .map_err(|error| DataError::Read { path: error.path().to_owned(), source: error.into() })?;
    if paths.is_empty() {
        return Err(wrong("no file matches; is the download complete?".to_owned()));
    }
    Ok(paths)
}

/// Returns the files whose names contain the split's words, and the names of all splits.
fn by_names(folder: &Path, split: &str) -> Result<(Vec<PathBuf>, Vec<String>), DataError> {
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

/// YAML between the first two `---` lines, if the text starts with one.
fn front_matter(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches('\u{FEFF}').strip_prefix("---")?;
    let rest = rest.strip_prefix('\r').unwrap_or(rest).strip_prefix('\n')?;
    rest.split_once("\n---").map(|(front_matter, _)| front_matter)
}

/// Whether YAML opens more lists and objects than it closes. The time of the parser grows with the
/// square of the depth.
fn is_deep(yaml: &str) -> bool {
    let is_block = |line: &str| {
        let markers = line.split([' ', '\t']).filter(|word| !word.is_empty());
        markers.take_while(|word| matches!(*word, "-" | "?")).count() > MAX_NESTING
    };
    let mut depth = 0_usize;
    let mut opens = |symbol: u8| {
        match symbol {
            b'[' | b'{' => depth = depth.saturating_add(1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > MAX_NESTING
    };
    yaml.lines().any(is_block) || yaml.bytes().any(&mut opens)
}

fn read_optional(path: &Path) -> Result<Option<String>, DataError> {
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        File::open(path)?.take(MAX_CARD.saturating_add(1)).read_to_string(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) if text.len() as u64 > MAX_CARD => Err(DataError::Card {
            path: path.to_owned(),
            message: format!("the file is too large: more than {MAX_CARD} bytes"),
        }),
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DataError::Read { path: path.to_owned(), source }),
    }
}
