//! Weights as Hugging Face folders. A folder is written under a temporary name and renamed when it
//! is complete.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rljob_crds::names::{EXPORT_ADAPTER_DIR, EXPORT_COMPLETE_FILE, WEIGHT_PROBES_FILE};
use rljob_protocol::version::Version;
use serde::Serialize;

use super::{PublishError, Staged};
use crate::model::hugging_face::write_folder;

/// Prefixes of the names of tokenizer files in a Hugging Face folder.
const TOKENIZER_FILES: [&str; 8] = [
    "tokenizer",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template",
    "spiece.model",
];

/// Content of [`EXPORT_COMPLETE_FILE`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Complete {
    /// Version of the exported weights.
    version: Version,
}

/// Writes weights for engines to `path`, without tokenizer, and the elements to check them by. An
/// existing folder is kept, because it has the same version and engines may be reading it.
///
/// # Errors
/// A file operation fails.
pub fn write_weights(
    path: &Path,
    model_directory: &Path,
    staged: &Staged,
) -> Result<(), PublishError> {
    if path.exists() {
        return Ok(());
    }
    let partial = start_partial(path)?;
    write_folder(&partial, model_directory, &staged.layout, staged.memory.blocks(), staged.kind)?;
    if !staged.probes.is_empty() {
        let file = partial.join(WEIGHT_PROBES_FILE);
        let json = serde_json::to_vec(&staged.probes)
            .map_err(|error| PublishError::io("encode", &file)(error.into()))?;
        fs::write(&file, json).map_err(PublishError::io("write", &file))?;
    }
    fs::rename(&partial, path).map_err(PublishError::io("rename to", path))
}

/// Writes the model with its tokenizer and adapters durably to `path`; `confirm` checks before the
/// commit that the attempt is current. An existing folder is replaced and loses its marker first,
/// so that a folder with the marker is complete.
///
/// # Errors
/// A file operation fails, or the attempt was superseded.
pub fn write_export(
    path: &Path,
    model_directory: &Path,
    staged: &Staged,
    version: Version,
    confirm: impl FnOnce() -> Result<(), PublishError>,
) -> Result<(), PublishError> {
    // The name includes the attempt, because a superseded attempt may write at the same time.
    let partial = start_partial(&PathBuf::from(format!("{}.{version}", path.display())))?;
    write_folder(&partial, model_directory, &staged.layout, staged.memory.blocks(), staged.kind)?;
    copy_tokenizer(model_directory, &partial)?;
    if let Some(adapters) = &staged.adapters {
        let folder = partial.join(EXPORT_ADAPTER_DIR);
        adapters.write(&folder)?;
        sync_files(&folder)?;
    }
    sync_files(&partial)?;
    let complete = partial.join(EXPORT_COMPLETE_FILE);
    let json = serde_json::to_vec_pretty(&Complete { version })
        .map_err(|error| PublishError::io("encode", &complete)(error.into()))?;
    fs::write(&complete, json).map_err(PublishError::io("write", &complete))?;
    sync_files(&partial)?;
    confirm()?;
    if path.exists() {
        remove_marker(path)
            .and_then(|()| fs::remove_dir_all(path))
            .map_err(PublishError::io("replace", path))?;
    }
    let sync_parent = || path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all());
    fs::rename(&partial, path)
        .and_then(|()| sync_parent())
        .map_err(PublishError::io("rename to", path))?;
    remove_partials(path).map_err(PublishError::io("remove partial folders of", path))
}

/// Removes unfinished folders of the same export.
fn remove_partials(path: &Path) -> io::Result<()> {
    let (Some(folder), Some(name)) =
        (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_partial = |other: &str| {
            other
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(".step-") && rest.ends_with(".partial"))
        };
        if entry.file_name().to_str().is_some_and(is_partial) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn remove_marker(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(EXPORT_COMPLETE_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::open(folder)?.sync_all(),
    }
}

/// Creates an empty folder with the temporary name of `path`.
fn start_partial(path: &Path) -> Result<PathBuf, PublishError> {
    let partial = crate::checkpoint::manifest::temporary(path);
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(PublishError::io("clear", &partial))?;
    }
    fs::create_dir_all(&partial).map_err(PublishError::io("create", &partial))?;
    Ok(partial)
}

fn copy_tokenizer(from: &Path, to: &Path) -> Result<(), PublishError> {
    for entry in fs::read_dir(from).map_err(PublishError::io("list", from))? {
        let entry = entry.map_err(PublishError::io("list", from))?;
        let name = entry.file_name();
        let wanted = name
            .to_str()
            .is_some_and(|name| TOKENIZER_FILES.iter().any(|start| name.starts_with(start)));
        if wanted && entry.path().is_file() {
            fs::copy(entry.path(), to.join(&name))
                .map_err(PublishError::io("copy", &entry.path()))?;
        }
    }
    Ok(())
}

fn sync_files(folder: &Path) -> Result<(), PublishError> {
    for entry in fs::read_dir(folder).map_err(PublishError::io("list", folder))? {
        let path = entry.map_err(PublishError::io("list", folder))?.path();
        File::open(&path)
            .and_then(|file| file.sync_all())
            .map_err(PublishError::io("sync", &path))?;
    }
    Ok(())
}
