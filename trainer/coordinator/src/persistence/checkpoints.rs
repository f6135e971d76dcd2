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
use serde::{Deserialize, Serialize};

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

/// Place in the training data after a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Position {
    /// First loader position that no batch up to the checkpoint's step has used up.
    next_position: u64,
}

/// Records where the data continues after a checkpoint. Blocks shortly.
///
/// # Errors
/// The file cannot be written.
pub fn put_position(
    run_store: &RunStore,
    version: Version,
    next_position: u64,
) -> Result<(), StorageError> {
    let name = format!("{}/{POSITION_FILE}", folder(version));
    let json = serde_json::json!(Position { next_position }).to_string();
    if run_store.size(&name)?.is_some() {
        return Ok(());
    }
    run_store.put(&name, json.into_bytes())
}

/// First unused loader position after the checkpoint in a folder; `None` if its run did not record
/// it. Blocks shortly.
///
/// # Errors
/// The file cannot be read.
pub fn position(checkpoint: &RunStore) -> Result<Option<u64>, StorageError> {
    let Some(bytes) = checkpoint.read(POSITION_FILE, MAX_MANIFEST)? else { return Ok(None) };
    let position = serde_json::from_slice::<Position>(&bytes).ok();
    Ok(position.map(|position| position.next_position).filter(|next| *next < MAX_POSITION))
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
mod tests {
    use std::path::Path;

    use rljob_protocol::checkpoint::{ModelShape, ObjectiveState, OptimizerProgress};
    use rljob_tests::S3;

    use super::*;
    use crate::persistence::mirror::tests::bucket;

    fn run_store(run: &tempfile::TempDir) -> RunStore {
        RunStore::Folder(run.path().to_owned())
    }

    fn checkpoint(run: &Path, name: &str, complete: bool) {
        let folder = run.join(CHECKPOINTS_DIR).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("rank-0.safetensors"), b"x").unwrap();
        if complete {
            std::fs::write(folder.join(MANIFEST), b"{}").unwrap();
        }
    }

    #[test]
    fn the_data_position_is_recorded_once_beside_a_checkpoint() {
        let run = tempfile::tempdir().unwrap();
        let (run_store, version) = (run_store(&run), Version { step: 4, attempt: 0 });
        let folder = whole(run.path(), 4);
        let checkpoint = RunStore::at(&folder, None).unwrap();
        assert_eq!(position(&checkpoint).unwrap(), None, "a run of an earlier release");
        put_position(&run_store, version, 19).unwrap();
        put_position(&run_store, version, 23).unwrap();
        assert_eq!(position(&checkpoint).unwrap(), Some(19));
        let found = Verifier::default().usable(&run_store).unwrap();
        assert_eq!(found, Found { usable: BTreeSet::from([version]), rejected: vec![] });
    }

    /// A checkpoint as a learner leaves it.
    fn whole(run: &Path, step: u32) -> std::path::PathBuf {
        let version = Version { step, attempt: 0 };
        checkpoint(run, &version.to_string(), false);
        let folder = run.join(CHECKPOINTS_DIR).join(version.to_string());
        // printf x | sha256sum
        let sha256 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881".to_owned();
        let files = vec![FileEntry { name: "rank-0.safetensors".to_owned(), size: 1, sha256 }];
        let (model, optimizer) = (
            ModelShape { sha256: String::new(), block_numels: vec![], base_sha256: None },
            OptimizerProgress::default(),
        );
        let roles = std::collections::BTreeMap::new();
        let objective = ObjectiveState::default();
        let (format, world_size) = (1, 1);
        let manifest = Manifest {
            format,
            version,
            world_size,
            model,
            optimizer,
            roles,
            objective,
            file_bytes: None,
            files,
        };
        std::fs::write(folder.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
        folder
    }

    #[test]
    fn a_manifest_that_names_a_file_outside_its_folder_is_rejected() {
        let run = tempfile::tempdir().unwrap();
        let folder = whole(run.path(), 4);
        std::fs::write(run.path().join("secret"), b"x").unwrap();
        let manifest = std::fs::read_to_string(folder.join(MANIFEST)).unwrap();
        for name in ["../../secret", "/etc/passwd", "..", "sub/x", ""] {
            let hostile = manifest.replace("rank-0.safetensors", name);
            std::fs::write(folder.join(MANIFEST), hostile).unwrap();
            let found = Verifier::default().usable(&run_store(&run)).unwrap();
            let [rejected] = &found.rejected[..] else { panic!("{name} was accepted") };
            assert_eq!(rejected.detail, format!("`{name}` is not a file of its folder"));
        }
    }

    #[test]
    fn a_torn_or_altered_checkpoint_is_rejected_once_and_the_previous_one_is_used() {
        let run = tempfile::tempdir().unwrap();
        let [_, altered, torn, garbled] = [2, 4, 6, 8].map(|step| whole(run.path(), step));
        let version = |step| Version { step, attempt: 0 };
        let mut verifier = Verifier::default();
        assert_eq!(
            verifier.usable(&run_store(&run)).ok(),
            Some(Found { usable: [2, 4, 6, 8].map(version).into(), rejected: vec![] })
        );

        std::fs::write(altered.join("rank-0.safetensors"), b"y").unwrap();
        std::fs::write(torn.join("rank-0.safetensors"), b"").unwrap();
        std::fs::write(garbled.join(MANIFEST), b"{").unwrap();
        let mut verifier = Verifier::default();
        let found = verifier.usable(&run_store(&run)).unwrap();
        assert_eq!(found.usable, [version(2)].into());
        let details: Vec<(u32, String)> = found
            .rejected
            .into_iter()
            .map(|rejected| {
                (
                    rejected.version.step,
                    rejected.detail.replace(&run.path().display().to_string(), ""),
                )
            })
            .collect();
        let file = |step| format!("`/checkpoints/step-{step}.attempt-0/rank-0.safetensors`");
        let sha256 = "its SHA-256 is \
            a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa, expected \
            2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
        assert_eq!(
            details,
            [
                (8, "manifest.json is not understood".to_owned()),
                (6, format!("{} has 0 bytes, expected 1", file(6))),
                (4, format!("{} was altered: {sha256}", file(4))),
            ]
        );
        assert_eq!(
            verifier.usable(&run_store(&run)).ok(),
            Some(Found { usable: [version(2)].into(), rejected: vec![] }),
            "a rejected checkpoint is not read again"
        );
    }

    #[test]
    fn bucket_checkpoints_are_verified_and_an_unavailable_server_rejects_none() {
        let (mut s3, run) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
        let bucket = bucket(&s3, run.path());
        let object =
            |step: u32, name: &str| format!("{}/{name}", folder(Version { step, attempt: 0 }));
        for step in [2, 4, 6, 8, 10] {
            let files = whole(run.path(), step);
            for name in ["rank-0.safetensors", MANIFEST] {
                bucket.upload(&files.join(name), &object(step, name)).unwrap();
            }
        }
        bucket.remove(&[object(10, MANIFEST), object(8, "rank-0.safetensors")]).unwrap();
        bucket.put(&object(6, "rank-0.safetensors"), vec![]).unwrap();
        bucket.put(&object(4, "rank-0.safetensors"), b"y".to_vec()).unwrap();
        let run_store =
            RunStore::Bucket(bucket.clone().with_retry_limit(std::time::Duration::ZERO));
        s3.kill().unwrap();
        let mut verifier = Verifier::default();
        assert!(verifier.usable(&run_store).is_err());
        s3.restart().unwrap();
        let found = verifier.usable(&run_store).unwrap();
        let place = |step| format!("`{}`", run_store.place(&object(step, "rank-0.safetensors")));
        let details: Vec<String> =
            found.rejected.iter().map(|rejected| rejected.detail.clone()).collect();
        assert_eq!(
            details[..2],
            [format!("{} is missing", place(8)), format!("{} has 0 bytes, expected 1", place(6))]
        );
        assert!(
            details[2].starts_with(&format!("{} was altered: its SHA-256 is ", place(4))),
            "{details:?}"
        );
        assert_eq!((found.usable.len(), found.rejected.len()), (1, 3));

        assert_eq!(
            prune(&run_store, &found.usable, 2, 1).unwrap(),
            found.usable,
            "rejected checkpoints do not count for retention"
        );
        assert_eq!(
            s3.keys("lab/job/checkpoints/"),
            [MANIFEST, "rank-0.safetensors"].map(|name| format!("lab/job/{}", object(2, name)))
        );
    }

    #[test]
    fn old_and_torn_checkpoints_are_removed_and_the_newest_and_unfinished_are_kept() {
        let run = tempfile::tempdir().unwrap();
        for (name, complete) in [
            ("step-2.attempt-0", true),
            ("step-4.attempt-0", true),
            ("step-4.attempt-1", true),
            ("step-5.attempt-0", false),
            ("step-6.attempt-1", false),
            ("notes", true),
        ] {
            checkpoint(run.path(), name, complete);
        }
        let kept = prune(&run_store(&run), &complete(&run_store(&run)).unwrap(), 2, 1).unwrap();
        assert_eq!(
            kept,
            BTreeSet::from([Version { step: 4, attempt: 0 }, Version { step: 4, attempt: 1 }])
        );
        let mut left: Vec<_> = std::fs::read_dir(run.path().join(CHECKPOINTS_DIR))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["notes", "step-4.attempt-0", "step-4.attempt-1", "step-6.attempt-1"]);
        assert_eq!(complete(&run_store(&run)).unwrap(), kept);
    }
}
