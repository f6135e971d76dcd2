//! Dataset card: which files README.md gives to a split, and how many rows the split has.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::names::{by_names, is_below};
use crate::data::error::DataError;

/// Maximum size of README.md and dataset_info.json in bytes.
const MAX_CARD: u64 = 16 << 20;
/// Maximum depth of lists and objects in README.md.
const MAX_NESTING: usize = 128;

/// Dataset card: the fields used from the front matter of README.md.
#[derive(Deserialize, Default)]
pub struct Card {
    #[serde(default)]
    configs: Vec<Config>,
    #[serde(default)]
    dataset_info: Option<OneOrMany<Info>>,
}

/// A subset with its files.
#[derive(Deserialize)]
pub struct Config {
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
    Map(BTreeMap<String, SplitInfo>),
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
    /// Reads README.md of a folder; the default without one.
    pub fn read(folder: &Path) -> Result<Self, DataError> {
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
    pub fn config(
        &self,
        folder: &Path,
        subset: Option<&str>,
    ) -> Result<Option<&Config>, DataError> {
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
    pub fn rows(
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
    pub fn files(
        &self,
        folder: &Path,
        split: &str,
    ) -> Result<(Vec<PathBuf>, Vec<String>), DataError> {
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
