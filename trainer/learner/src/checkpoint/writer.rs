//! Checkpoint writer: writes snapshots in the background, one at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rljob_crds::algorithm::ModelRole;
use rljob_crds::names::CHECKPOINTS_DIR;
use rljob_protocol::checkpoint::ObjectiveState;
use rljob_protocol::learner::CheckpointReport;
use rljob_protocol::version::Version;
use rljob_storage::{Bucket, MAX_MANIFEST};

use super::files::division;
use super::manifest::{
    FORMAT, FORMAT_WITH_FILES, FORMAT_WITH_ROLES, FileEntry, MANIFEST_FILE, Manifest, ModelPart,
    ModelShape, OptimizerProgress, Receipt, read_json, receipt_file, role_name, write_json,
};
use super::{CheckpointError, Snapshot};
use crate::background::Background;
use crate::coordinator_client::CoordinatorClient;

/// Timeout of rank 0 waiting for the parts of other ranks.
const PEERS_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval of polling the folder.
const PEERS_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of polling the bucket.
const BUCKET_INTERVAL: Duration = Duration::from_millis(500);

/// Destination of a rank's part of a checkpoint.
#[derive(Clone, Debug)]
pub struct Destination {
    /// Folder of the checkpoint, or the local folder of files before the upload to a bucket.
    pub path: PathBuf,
    /// Bucket, if the run store is one.
    pub bucket: Option<Bucket>,
    pub version: Version,
    /// Index of the rank among those that write, which is that of its shard.
    pub rank: u32,
    /// Number of ranks that write: those of one replica.
    pub world_size: u32,
    /// Bytes of a file at most, unless one block has more.
    pub file_bytes: u64,
}

/// Writes checkpoints in the background; at most one is in flight.
#[derive(Debug)]
pub struct CheckpointWriter {
    /// Client for reports, on rank 0 only.
    client: Option<CoordinatorClient>,
    shapes: BTreeMap<ModelRole, ModelShape>,
    background: Background<CheckpointError>,
    newest: Option<Version>,
}

impl CheckpointWriter {
    /// Creates a writer for checkpoints of models of `shapes`; completed ones are reported through
    /// `client`, if given.
    pub fn new(client: Option<CoordinatorClient>, shapes: BTreeMap<ModelRole, ModelShape>) -> Self {
        Self { client, shapes, background: Background::new("checkpoint"), newest: None }
    }

    /// Whether the newest checkpoint has this version.
    pub fn is_newest(&self, version: Version) -> bool {
        self.newest == Some(version)
    }

    /// Waits for the previous checkpoint, then writes `snapshot` in the background and reports it
    /// as `path`.
    ///
    /// # Errors
    /// The previous checkpoint failed, or the thread cannot be started.
    pub fn begin(
        &mut self,
        destination: Destination,
        path: PathBuf,
        snapshot: Snapshot,
    ) -> Result<(), CheckpointError> {
        self.newest = Some(destination.version);
        let (client, shapes) = (self.client.clone(), self.shapes.clone());
        self.background.begin(move || {
            let confirm = || {
                client.as_ref().map_or(Ok(()), |client| {
                    client
                        .confirm()
                        .map_err(|error| CheckpointError::Commit(destination.version, error))
                })
            };
            write(&destination, &shapes, snapshot, confirm)?;
            report(client.as_ref(), &path, destination.version)
        })
    }

    /// Reports the newest checkpoint again, once it is complete.
    ///
    /// # Errors
    /// The checkpoint or the report failed.
    pub fn repeat_report(&mut self, path: &Path, version: Version) -> Result<(), CheckpointError> {
        self.wait()?;
        report(self.client.as_ref(), path, version)
    }

    /// Checks the checkpoint in flight without blocking.
    ///
    /// # Errors
    /// The checkpoint in flight has failed.
    pub fn check(&mut self) -> Result<(), CheckpointError> {
        self.background.check()
    }

    /// Waits for the checkpoint in flight.
    ///
    /// # Errors
    /// The checkpoint failed.
    pub fn wait(&mut self) -> Result<(), CheckpointError> {
        self.background.wait()
    }
}

fn report(
    client: Option<&CoordinatorClient>,
    path: &Path,
    version: Version,
) -> Result<(), CheckpointError> {
    let Some(client) = client else { return Ok(()) };
    let report = CheckpointReport { attempt: client.attempt(), version, path: path.to_owned() };
    client.report_checkpoint(&report).map_err(|error| CheckpointError::Report(version, error))
}

/// Writes a rank's part and, on rank 0, the manifest after all parts. `confirm` checks before the
/// commit that the attempt is current.
pub(super) fn write(
    destination: &Destination,
    shapes: &BTreeMap<ModelRole, ModelShape>,
    snapshot: Snapshot,
    confirm: impl FnOnce() -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let Destination { path, version, rank, world_size, .. } = destination;
    let started = Instant::now();
    let state = (snapshot.progress().collect(), snapshot.objective);
    let division = division(shapes, *world_size, destination.file_bytes);
    let files = snapshot.write(path, (*rank, *world_size), &division)?;
    let seconds = started.elapsed().as_secs_f64();
    let bytes = files.iter().map(|file| file.size).sum::<u64>();
    tracing::info!(%version, bytes, seconds, "wrote this rank's part of a checkpoint");
    let receipt = receipt_file(*rank, *world_size);
    match &destination.bucket {
        Some(bucket) => upload(destination, bucket, &receipt, files)?,
        None => write_json(&path.join(receipt), &Receipt::new(files))?,
    }
    if *rank != 0 {
        return Ok(());
    }
    let files = destination
        .bucket
        .as_ref()
        .map_or_else(|| receipts(destination), |bucket| uploaded(destination, bucket))?;
    confirm()?;
    let manifest = manifest(destination, shapes, state, files)?;
    match &destination.bucket {
        Some(bucket) => Ok(bucket.put(
            &format!("{CHECKPOINTS_DIR}/{version}/{MANIFEST_FILE}"),
            json(&manifest, path)?,
        )?),
        None => write_json(&path.join(MANIFEST_FILE), &manifest),
    }
}

fn manifest(
    destination: &Destination,
    shapes: &BTreeMap<ModelRole, ModelShape>,
    (progress, objective): (Vec<(ModelRole, OptimizerProgress)>, ObjectiveState),
    files: Vec<FileEntry>,
) -> Result<Manifest, CheckpointError> {
    let several = files.len() > destination.world_size as usize;
    let part = |(role, optimizer)| Some((role, (shapes.get(&role)?.clone(), optimizer)));
    let mut parts: BTreeMap<ModelRole, _> = progress.into_iter().filter_map(part).collect();
    let (model, optimizer) = parts
        .remove(&ModelRole::Policy)
        .ok_or(CheckpointError::Role { role: role_name(ModelRole::Policy) })?;
    let other =
        |(role, (model, optimizer))| (role_name(role).to_owned(), ModelPart { model, optimizer });
    let roles: BTreeMap<String, ModelPart> = parts.into_iter().map(other).collect();
    Ok(Manifest {
        format: match (several, roles.is_empty()) {
            (true, _) => FORMAT_WITH_FILES,
            (false, false) => FORMAT_WITH_ROLES,
            (false, true) => FORMAT,
        },
        version: destination.version,
        world_size: destination.world_size,
        model,
        optimizer,
        roles,
        objective,
        file_bytes: several.then_some(destination.file_bytes),
        files,
    })
}

/// Uploads a rank's part, then its receipt.
fn upload(
    destination: &Destination,
    bucket: &Bucket,
    receipt: &str,
    files: Vec<FileEntry>,
) -> Result<(), CheckpointError> {
    let folder = format!("{CHECKPOINTS_DIR}/{}", destination.version);
    let started = Instant::now();
    let paths: Vec<_> = files.iter().map(|entry| destination.path.join(&entry.name)).collect();
    for (path, entry) in paths.iter().zip(&files) {
        bucket.upload(path, &format!("{folder}/{}", entry.name))?;
    }
    let bytes = files.iter().map(|entry| entry.size).sum::<u64>();
    let receipt = format!("{folder}/{receipt}");
    bucket.put(&receipt, json(&Receipt::new(files), &destination.path)?)?;
    for path in paths {
        fs::remove_file(&path).map_err(|error| CheckpointError::io("remove", &path, error))?;
    }
    tracing::info!(
        version = %destination.version,
        bytes,
        seconds = started.elapsed().as_secs_f64(),
        "uploaded this rank's part of a checkpoint"
    );
    Ok(())
}

fn json(value: &impl serde::Serialize, path: &Path) -> Result<Vec<u8>, CheckpointError> {
    serde_json::to_vec_pretty(value)
        .map_err(|error| CheckpointError::io("encode", path, error.into()))
}

/// Waits for the receipts of all ranks in the bucket and checks the sizes of their parts.
fn uploaded(destination: &Destination, bucket: &Bucket) -> Result<Vec<FileEntry>, CheckpointError> {
    let folder = &format!("{CHECKPOINTS_DIR}/{}", destination.version);
    let ranks = || 0..destination.world_size;
    let mut there = bucket.list(folder)?;
    let started = Instant::now();
    while !ranks().all(|rank| there.contains_key(&receipt_file(rank, destination.world_size))) {
        if started.elapsed() > PEERS_TIMEOUT {
            let ranks = ranks()
                .filter(|rank| !there.contains_key(&receipt_file(*rank, destination.world_size)))
                .collect();
            return Err(CheckpointError::Peers {
                path: bucket.place(folder).into(),
                ranks,
                seconds: PEERS_TIMEOUT.as_secs(),
            });
        }
        std::thread::sleep(BUCKET_INTERVAL);
        there = bucket.list(folder)?;
    }
    let of_rank = |rank| {
        let name = format!("{folder}/{}", receipt_file(rank, destination.world_size));
        let torn = |detail: String| CheckpointError::Torn { place: bucket.place(&name), detail };
        let receipt = bucket.read(&name, MAX_MANIFEST)?.unwrap_or_default();
        let receipt: Receipt = serde_json::from_slice(&receipt)
            .map_err(|error| torn(format!("is not a receipt: {error}")))?;
        let check = |entry: FileEntry| match there.get(&entry.name) {
            Some(size) if *size == entry.size => Ok(entry),
            found => Err(torn(format!(
                "names a file of {} bytes, but the bucket has {found:?}",
                entry.size
            ))),
        };
        receipt.into_files().into_iter().map(check).collect()
    };
    let files: Vec<Vec<FileEntry>> = ranks().map(of_rank).collect::<Result<_, _>>()?;
    Ok(files.into_iter().flatten().collect())
}

/// Waits for the receipts of all ranks in the folder.
fn receipts(destination: &Destination) -> Result<Vec<FileEntry>, CheckpointError> {
    let started = Instant::now();
    loop {
        let path = |rank| destination.path.join(receipt_file(rank, destination.world_size));
        let missing: Vec<u32> =
            (0..destination.world_size).filter(|&rank| !path(rank).exists()).collect();
        if missing.is_empty() {
            let of_rank = |rank| Ok(read_json::<Receipt>(&path(rank))?.into_files());
            let files: Vec<_> =
                (0..destination.world_size).map(of_rank).collect::<Result<_, CheckpointError>>()?;
            return Ok(files.into_iter().flatten().collect());
        }
        if started.elapsed() > PEERS_TIMEOUT {
            return Err(CheckpointError::Peers {
                path: destination.path.clone(),
                ranks: missing,
                seconds: PEERS_TIMEOUT.as_secs(),
            });
        }
        std::thread::sleep(PEERS_INTERVAL);
    }
}
