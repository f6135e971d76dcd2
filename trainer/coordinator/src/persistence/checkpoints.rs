//! Checkpoints in the run store: listing, verification and retention.
//!
//! A checkpoint is complete if it has a manifest, which is written last and removed first. It is
//! usable if its files match the manifest. A group restores usable checkpoints only, so that a torn
//! or altered one costs the steps since the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rayon::prelude::*;
use rljob_crds::names::CHECKPOINTS_DIR;
use rljob_protocol::checkpoint::{FileEntry, Manifest, POSITION_FILE};
use rljob_protocol::version::Version;
use rljob_storage::{MAX_MANIFEST, RunStore, StorageError};

use crate::persistence::journal::DataPosition;

pub use rljob_protocol::checkpoint::MANIFEST_FILE as MANIFEST;

/// Complete checkpoints of a run. Blocks shortly.
///
/// # Errors
/// Listing failed; an unreadable run store is not treated as empty.
pub fn complete(run_store: &RunStore) -> Result<BTreeSet<Version>, StorageError> {
    Ok(folders(run_store)?
        .into_iter()
        .filter(|(_, complete)| *complete)
        .map(|(version, _)| version)
        .collect())
}

/// A checkpoint's folder in the run store.
pub fn folder(version: Version) -> String {
    format!("{CHECKPOINTS_DIR}/{version}")
}

/// Whether a checkpoint is complete. Blocks shortly.
pub fn is_complete(run_store: &RunStore, version: Version) -> Result<bool, StorageError> {
    Ok(run_store.size(&format!("{}/{MANIFEST}", folder(version)))?.is_some())
}

/// Positions below this fit every sum.
const MAX_POSITION: u64 = 1 << 48;

/// Records where the data continues after a checkpoint. Blocks shortly.
///
/// # Errors
/// The file cannot be written.
pub fn put_position(
    run_store: &RunStore,
    version: Version,
    position: &DataPosition,
) -> Result<(), StorageError> {
    let name = format!("{}/{POSITION_FILE}", folder(version));
    let json = serde_json::json!(position).to_string();
    if run_store.size(&name)?.is_some() {
        return Ok(());
    }
    run_store.put(&name, json.into_bytes())
}

/// Place in the training data after the checkpoint in a folder; `None` if its run did not record
/// it. Blocks shortly.
///
/// # Errors
/// The file cannot be read.
pub fn position(checkpoint: &RunStore) -> Result<Option<DataPosition>, StorageError> {
    let Some(bytes) = checkpoint.read(POSITION_FILE, MAX_MANIFEST)? else { return Ok(None) };
    let position = serde_json::from_slice::<DataPosition>(&bytes).ok();
    let is_valid = |position: &DataPosition| {
        let next = position.next_position;
        let is_ordered = position.passed_over.is_sorted_by(|one, other| one < other);
        next < MAX_POSITION
            && is_ordered
            && position.passed_over.last().is_none_or(|last| *last < next)
    };
    Ok(position.filter(is_valid))
}

/// Folders of checkpoints after `version`, also incomplete ones. Blocks shortly.
///
/// # Errors
/// They cannot be listed.
pub fn after(run_store: &RunStore, version: Version) -> Result<Vec<Version>, StorageError> {
    let mut later: Vec<_> = folders(run_store)?.into_iter().map(|(version, _)| version).collect();
    later.retain(|other| *other > version);
    later.sort();
    Ok(later)
}

/// Why a group cannot start from a checkpoint; `None` if its files match its manifest. Blocks.
///
/// # Errors
/// A file cannot be read.
pub fn problem(run_store: &RunStore, version: Version) -> Result<Option<String>, StorageError> {
    match read_manifest(run_store, version)? {
        Some(manifest) => verify(run_store, version, &manifest),
        None => Ok(Some(format!("{MANIFEST} is not understood"))),
    }
}

/// Complete checkpoint whose files differ from its manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedCheckpoint {
    /// Which.
    pub version: Version,
    /// First difference.
    pub detail: String,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Complete checkpoints, the newest of which is verified.
    pub usable: BTreeSet<Version>,
    /// Newer checkpoints that were rejected now.
    pub rejected: Vec<RejectedCheckpoint>,
}

/// Verifies checkpoints, each once as long as it keeps its manifest: reading one of a large model
/// takes minutes.
#[derive(Debug, Default)]
pub struct Verifier(BTreeMap<Version, (Option<Manifest>, bool)>);

impl Verifier {
    /// The complete checkpoints, except the newest ones whose files differ from their manifest in
    /// size or SHA-256. Blocks.
    ///
    /// # Errors
    /// They cannot be listed, or the server of a bucket is unavailable. Nothing is rejected then.
    pub fn usable(&mut self, run_store: &RunStore) -> Result<Found, StorageError> {
        let mut found = Found { usable: complete(run_store)?, rejected: Vec::new() };
        while let Some(&version) = found.usable.last() {
            let manifest = read_manifest(run_store, version)?;
            let known =
                self.0.get(&version).filter(|(known, _)| *known == manifest).map(|(_, good)| *good);
            if known == Some(true) {
                break;
            }
            if known.is_none() {
                let detail = match &manifest {
                    Some(manifest) => verify(run_store, version, manifest)?,
                    None => Some(format!("{MANIFEST} is not understood")),
                };
                let good = detail.is_none();
                found.rejected.extend(detail.map(|detail| RejectedCheckpoint { version, detail }));
                self.0.insert(version, (manifest, good));
                if good {
                    break;
                }
            }
            found.usable.remove(&version);
        }
        Ok(found)
    }
}

/// The manifest of a complete checkpoint whose files match it, or the first difference. Blocks.
///
/// # Errors
/// The server of a bucket is unavailable.
pub fn compared(
    run_store: &RunStore,
    version: Version,
) -> Result<Result<Manifest, String>, StorageError> {
    let Some(manifest) = read_manifest(run_store, version)? else {
        return Ok(Err(format!("{MANIFEST} is not understood")));
    };
    Ok(match verify(run_store, version, &manifest)? {
        None => Ok(manifest),
        Some(difference) => Err(difference),
    })
}

/// `None` if it cannot be parsed.
fn read_manifest(run_store: &RunStore, version: Version) -> Result<Option<Manifest>, StorageError> {
    match run_store.read(&format!("{}/{MANIFEST}", folder(version)), MAX_MANIFEST) {
        Ok(bytes) => Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok())),
        Err(StorageError::Io { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// First difference between a checkpoint and its manifest.
fn verify(
    run_store: &RunStore,
    version: Version,
    manifest: &Manifest,
) -> Result<Option<String>, StorageError> {
    if manifest.version != version {
        return Ok(Some(format!("its manifest is of {}", manifest.version)));
    }
    let difference = |entry: &FileEntry| {
        if Path::new(&entry.name).file_name().is_none_or(|name| name != entry.name.as_str()) {
            return Ok(Some(format!("`{}` is not a file of its folder", entry.name)));
        }
        let name = format!("{}/{}", folder(version), entry.name);
        match verify_file(run_store, &name, entry) {
            Ok(detail) => Ok(detail.map(|detail| format!("`{}` {detail}", run_store.place(&name)))),
            // A file that its own disk does not give back is no better than a missing one.
            Err(StorageError::Io { source, .. }) => {
                Ok(Some(format!("`{}` cannot be read: {source}", run_store.place(&name))))
            }
            Err(error) => Err(error),
        }
    };
    let differences: Vec<_> =
        manifest.files.par_iter().map(difference).collect::<Result<_, StorageError>>()?;
    Ok(differences.into_iter().flatten().next())
}

fn verify_file(
    run_store: &RunStore,
    name: &str,
    entry: &FileEntry,
) -> Result<Option<String>, StorageError> {
    let Some(size) = run_store.size(name)? else { return Ok(Some("is missing".to_owned())) };
    if size != entry.size {
        return Ok(Some(format!("has {size} bytes, expected {}", entry.size)));
    }
    let sha256 = run_store.sha256(name)?;
    Ok((sha256 != entry.sha256)
        .then(|| format!("was altered: its SHA-256 is {sha256}, expected {}", entry.sha256)))
}

/// Removes all but the newest `keep_last` of the `usable` checkpoints, and torn or rejected ones of
/// attempts before `attempt`, which have no writer. Returns the kept ones. Blocks.
pub fn prune(
    run_store: &RunStore,
    usable: &BTreeSet<Version>,
    keep_last: u32,
    attempt: u32,
) -> Result<BTreeSet<Version>, StorageError> {
    let (complete, torn): (Vec<_>, Vec<_>) = folders(run_store)?
        .into_iter()
        .partition(|(version, complete)| *complete && usable.contains(version));
    let complete: BTreeSet<Version> = complete.into_iter().map(|(version, _)| version).collect();
    let (old, kept) = split(&complete, keep_last);
    let torn =
        torn.into_iter().map(|(version, _)| version).filter(|version| version.attempt < attempt);
    for version in old.into_iter().chain(torn) {
        run_store.remove_folder(&folder(version), MANIFEST)?;
    }
    Ok(kept)
}

/// (old, kept): the newest `keep_last`, at least one, are kept.
fn split(complete: &BTreeSet<Version>, keep_last: u32) -> (BTreeSet<Version>, BTreeSet<Version>) {
    let first_kept = complete.len().saturating_sub(keep_last.max(1) as usize);
    let (old, kept): (Vec<_>, Vec<_>) =
        complete.iter().copied().enumerate().partition(|(index, _)| *index < first_kept);
    (
        old.into_iter().map(|(_, version)| version).collect(),
        kept.into_iter().map(|(_, version)| version).collect(),
    )
}

/// Every checkpoint folder, and whether it is complete. Other names are not ours.
fn folders(run_store: &RunStore) -> Result<Vec<(Version, bool)>, StorageError> {
    let folders = run_store.folders(CHECKPOINTS_DIR, MANIFEST)?;
    Ok(folders
        .into_iter()
        .filter_map(|folder| Some((folder.name.parse().ok()?, folder.complete)))
        .collect())
}

#[cfg(test)]
mod tests;
