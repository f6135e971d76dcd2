//! Contents of the inputs of a run, recorded in `inputs.json`. A run whose project folder has moved
//! continues if they are the same: paths of inputs do not identify them.
//!
//! ```text
//!  inputs.json (path, SHA-256) ──┐
//!  paths of the job ─────────────┴▶ Located: inputs now, changed fields
//!  run.json of the last start ──────▶ at_current_paths ─▶ compared with the job
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rljob_crds::RunConfig;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::paths::paths_mut;

/// Field of the model folder, which may also be the export of another job.
const MODEL: &str = "spec.model";
/// Files up to this size in bytes are hashed whole.
const WHOLE: u64 = 1 << 30;
/// Number of evenly spaced blocks that are hashed of larger files.
const BLOCKS: u64 = 256;
/// Size of a block in bytes.
const BLOCK: u64 = 1 << 20;
/// Maximum depth of folders, against links to a parent.
const DEPTH: usize = 16;
/// Written by Python when it imports a module.
const PYTHON_CACHE: &str = "__pycache__";

/// Inputs of a run.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Inputs {
    /// `spec.model.path` when the run began, which the identity of its run store contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,
    /// Inputs by the field that names them.
    #[serde(default)]
    pub contents: BTreeMap<String, Input>,
}

/// A file or folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Where it was at the last start.
    pub path: String,
    /// SHA-256 of the contents, as hexadecimal.
    pub sha256: String,
}

/// Inputs at the paths of the current job.
#[derive(Debug, Default)]
pub struct Located {
    pub inputs: Inputs,
    /// Fields whose path and contents differ from those of the run.
    pub changed: Vec<String>,
}

impl Located {
    /// Finds the inputs of `current`. Reads those that are new or at another path. `previous` is
    /// the configuration of the last start, which may be older than the record.
    pub fn new(recorded: &Inputs, previous: Option<&RunConfig>, current: &RunConfig) -> Self {
        let began = previous.map_or(&current.spec, |previous| &previous.spec);
        let model_path = recorded.model_path.clone().or_else(|| began.model.path.clone());
        let inputs = Inputs { model_path, contents: BTreeMap::new() };
        let mut located = Self { inputs, changed: Vec::new() };
        for (field, path) in paths(current) {
            let before = recorded.contents.get(&field);
            if let Some(input) = before.filter(|input| input.path == path) {
                located.inputs.contents.insert(field, input.clone());
                continue;
            }
            // The processes report inputs that cannot be read.
            let sha256 = digest(Path::new(&path)).ok();
            if before.is_some_and(|input| Some(&input.sha256) != sha256.as_ref()) {
                located.changed.push(field.clone());
            }
            if let Some(sha256) = sha256 {
                located.inputs.contents.insert(field, Input { path, sha256 });
            }
        }
        located
    }

    /// The configuration of the last start with the current paths of inputs whose contents are the
    /// same.
    pub fn at_current_paths(&self, recorded: &Inputs, mut previous: RunConfig) -> RunConfig {
        let moved = |field: &str, path: &str| {
            let before = recorded.contents.get(field).filter(|input| input.path == path)?;
            let now = self.inputs.contents.get(field)?;
            (now.sha256 == before.sha256).then(|| now.path.clone())
        };
        for (field, path) in paths_mut(&mut previous.spec) {
            if let Some(now) = moved(&field, path) {
                *path = now;
            }
        }
        if let Some(now) = moved(MODEL, &previous.model_directory.to_string_lossy()) {
            previous.model_directory = PathBuf::from(now);
        }
        previous
    }

    /// `model_identity` of the run configuration.
    pub fn model_identity(&self, current: &RunConfig) -> Option<String> {
        self.inputs.model_path.clone().filter(|path| current.spec.model.path.as_ref() != Some(path))
    }
}

/// Paths of all inputs, with their fields. A model of the Hugging Face Hub is identified by its
/// revision.
fn paths(config: &RunConfig) -> Vec<(String, String)> {
    let mut spec = config.spec.clone();
    let mut paths: Vec<(String, String)> =
        paths_mut(&mut spec).into_iter().map(|(field, path)| (field, path.clone())).collect();
    if spec.model.hugging_face.is_none() {
        let folder = config.model_directory.to_string_lossy().into_owned();
        paths.push((MODEL.to_owned(), folder));
    }
    paths
}

/// SHA-256 of a file, or of the names and contents of the files in a folder. Hidden files are
/// ignored.
fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    if path.is_dir() {
        hash_folder(path, Path::new(""), DEPTH, &mut hash)?;
    } else {
        hash_file(path, &mut hash)?;
    }
    Ok(format!("{:x}", hash.finalize()))
}

fn hash_folder(folder: &Path, name: &Path, depth: usize, hash: &mut Sha256) -> io::Result<()> {
    let depth = depth.checked_sub(1).ok_or(io::ErrorKind::QuotaExceeded)?;
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name()));
    let mut names = entries.collect::<io::Result<Vec<_>>>()?;
    names.retain(|name| !name.as_encoded_bytes().starts_with(b".") && name != PYTHON_CACHE);
    names.sort();
    for entry in names {
        let (path, name) = (folder.join(&entry), name.join(&entry));
        if path.is_dir() {
            hash_folder(&path, &name, depth, hash)?;
        } else {
            hash.update(name.as_os_str().as_encoded_bytes());
            hash.update([0]);
            hash_file(&path, hash)?;
        }
    }
    Ok(())
}

/// Hashes the length of a file and its contents, or blocks of a large file.
fn hash_file(path: &Path, hash: &mut Sha256) -> io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    hash.update(length.to_le_bytes());
    if length <= WHOLE {
        io::copy(&mut file, hash)?;
        return Ok(());
    }
    let last = length.saturating_sub(BLOCK);
    for index in 0..BLOCKS {
        let start = last.saturating_mul(index) / (BLOCKS - 1);
        file.seek(SeekFrom::Start(start))?;
        io::copy(&mut (&mut file).take(BLOCK), hash)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::run_config;
    use crate::validate::test_support::with_spec;

    /// A project folder with a model and data.
    fn project() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("model")).unwrap();
        fs::write(folder.path().join("model/config.json"), "{}").unwrap();
        fs::write(folder.path().join("train.jsonl"), "{}\n").unwrap();
        folder
    }

    fn config(folder: &Path) -> RunConfig {
        let path = |name: &str| folder.join(name).display().to_string();
        run_config(&with_spec(&serde_json::json!({
            "model": {"path": path("model")},
            "dataset": {"train": {"path": path("train.jsonl")}},
        })))
    }

    #[test]
    fn inputs_at_another_path_with_the_same_contents_are_the_same() {
        let (before, after) = (project(), project());
        let (old, new) = (config(before.path()), config(after.path()));
        let recorded = Located::new(&Inputs::default(), None, &old).inputs;
        assert_eq!(
            recorded.contents.keys().collect::<Vec<_>>(),
            ["spec.dataset.train.path", "spec.model", "spec.model.path"]
        );
        let located = Located::new(&recorded, Some(&old), &new);
        assert_eq!(located.changed, [""; 0]);
        assert_eq!(located.at_current_paths(&recorded, old.clone()), new);
        assert_eq!(located.model_identity(&new), old.spec.model.path);
        assert_eq!(Located::new(&recorded, Some(&old), &old).model_identity(&old), None);

        fs::write(after.path().join("train.jsonl"), "{\"a\": 1}\n").unwrap();
        let located = Located::new(&recorded, Some(&old), &new);
        assert_eq!(located.changed, ["spec.dataset.train.path"]);
        let compared = located.at_current_paths(&recorded, old.clone());
        assert_eq!(compared.model_directory, new.model_directory);
        assert_eq!(compared.spec.dataset, old.spec.dataset, "as before, for the comparison");
    }

    #[test]
    fn a_run_without_a_record_is_compared_by_its_paths() {
        let (before, after) = (project(), project());
        let (old, new) = (config(before.path()), config(after.path()));
        let located = Located::new(&Inputs::default(), Some(&old), &new);
        assert_eq!(located.changed, [""; 0]);
        assert_eq!(located.at_current_paths(&Inputs::default(), old.clone()), old);
    }

    #[test]
    fn the_digest_of_a_folder_has_names_and_contents() {
        let folder = project();
        let digest = || digest(folder.path()).unwrap();
        let first = digest();
        fs::write(folder.path().join(".cache"), "x").unwrap();
        fs::create_dir(folder.path().join(PYTHON_CACHE)).unwrap();
        fs::write(folder.path().join(PYTHON_CACHE).join("a.pyc"), "x").unwrap();
        assert_eq!(digest(), first);
        fs::rename(folder.path().join("model"), folder.path().join("other")).unwrap();
        let renamed = digest();
        assert_ne!(renamed, first);
        fs::write(folder.path().join("other/config.json"), "[]").unwrap();
        assert_ne!(digest(), renamed);
    }

    #[test]
    fn blocks_of_a_large_file_are_hashed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let file = File::create(&path).unwrap();
        file.set_len(WHOLE + 12_345).unwrap();
        let first = digest(&path).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, b"x", WHOLE + 12_344).unwrap();
        assert_ne!(digest(&path).unwrap(), first, "the last block");
        file.set_len(WHOLE + 12_346).unwrap();
        assert_ne!(digest(&path).unwrap(), first, "the length");
    }
}
