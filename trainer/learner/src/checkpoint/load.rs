//! Checkpoint loading: restores a checkpoint on any number of ranks, and checks that its files are
//! unaltered.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use rljob_crds::algorithm::ModelRole;
use rljob_protocol::checkpoint::ObjectiveState;
use rljob_protocol::version::Version;
use rljob_storage::RunStore;
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use super::CheckpointError;
use super::check::{check_files, check_identity, read_manifest, torn};
use super::files::{PARTS, Piece, division};
use super::manifest::{FileEntry, ModelShape, OptimizerProgress, role_name};
use super::shard::{CHUNK, tensor_name};
use crate::fsdp::shard_numel;
use crate::model::safetensors_file::{HeaderError, read_header};

/// A rank's part of a checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    pub models: BTreeMap<ModelRole, Restored>,
    pub objective: ObjectiveState,
}

/// A rank's part of a model.
#[derive(Debug)]
pub struct Restored {
    /// By block: fp32 shards of master weights, first and second moment.
    pub blocks: Vec<[Tensor; 3]>,
    pub optimizer: OptimizerProgress,
}

/// Devices on which tensors of a checkpoint are needed.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub weights: Device,
    pub moments: Device,
}

impl Places {
    /// Everything on one device.
    pub fn all(device: Device) -> Self {
        Self { weights: device, moments: device }
    }
}

/// Reads the shards of rank `rank` of `world_size` from checkpoint `version` in `folder`, for the
/// models of `shapes`, by role. Threads read its files.
///
/// # Errors
/// [`CheckpointError::Torn`] if a file is missing, truncated or altered; [`CheckpointError::Other`]
/// if its version or models differ.
pub fn load(
    folder: &RunStore,
    version: Version,
    shapes: &BTreeMap<ModelRole, ModelShape>,
    shard: (u32, u32),
    places: Places,
) -> Result<Checkpoint, CheckpointError> {
    let manifest = read_manifest(folder)?;
    check_identity(folder, &manifest, version, shapes)?;
    let division = division(shapes, manifest.world_size, manifest.file_bytes.unwrap_or(u64::MAX));
    check_files(folder, &manifest, division.len())?;
    let reader = Reader { folder, world_size: manifest.world_size, shapes, shard, places };
    let read = |(file, pieces): (usize, &Vec<Piece>)| {
        reader.read(manifest.files.iter().skip(file).step_by(division.len()), pieces)
    };
    let read: Vec<_> =
        division.par_iter().enumerate().map(read).collect::<Result<_, CheckpointError>>()?;
    let mut models: BTreeMap<ModelRole, Vec<Tensor>> = BTreeMap::new();
    for ((role, ..), tensor) in read.into_iter().flatten() {
        models.entry(role).or_default().push(tensor);
    }
    let restored = |(role, tensors): (ModelRole, Vec<Tensor>)| {
        let part = manifest.roles.get(role_name(role));
        let optimizer = part.map_or(manifest.optimizer, |part| part.optimizer);
        let mut tensors = tensors.into_iter();
        let blocks =
            std::iter::from_fn(|| Some([tensors.next()?, tensors.next()?, tensors.next()?]));
        (role, Restored { blocks: blocks.collect(), optimizer })
    };
    Ok(Checkpoint {
        models: models.into_iter().map(restored).collect(),
        objective: manifest.objective,
    })
}

/// Reads the shards of one rank.
struct Reader<'a> {
    folder: &'a RunStore,
    /// Number of ranks that wrote.
    world_size: u32,
    shapes: &'a BTreeMap<ModelRole, ModelShape>,
    /// The rank and the number of ranks.
    shard: (u32, u32),
    places: Places,
}

/// A tensor that is read: elements that the file holds and the rank wants, of those of the block.
struct Target {
    held: Range<i64>,
    wanted: Range<i64>,
    tensor: Tensor,
}

impl Reader<'_> {
    /// The shards of `pieces` from the files that have them, one of each rank that wrote.
    fn read<'f>(
        &self,
        files: impl Iterator<Item = &'f FileEntry>,
        pieces: &[Piece],
    ) -> Result<Vec<(Piece, Tensor)>, CheckpointError> {
        let (rank, world_size) = self.shard;
        let zeros = |piece: &Piece| {
            let length = shard_numel(self.numel(*piece), world_size);
            let place = if piece.2 == 0 { self.places.weights } else { self.places.moments };
            Ok((*piece, Tensor::f_zeros([length], (Kind::Float, place))?))
        };
        let shards: Vec<_> = pieces.iter().map(zeros).collect::<Result<_, CheckpointError>>()?;
        for (source, entry) in (0..self.world_size).zip(files) {
            let target = |(piece, tensor): &(Piece, Tensor)| {
                let numel = self.numel(*piece);
                let held = part_of(numel, source, self.world_size);
                let wanted = part_of(numel, rank, world_size);
                (name_of(*piece), Target { held, wanted, tensor: tensor.shallow_clone() })
            };
            let targets: BTreeMap<String, Target> = shards.iter().map(target).collect();
            if targets.values().any(|target| !overlap(&target.held, &target.wanted).is_empty()) {
                self.read_file(entry, &targets)?;
            }
        }
        Ok(shards)
    }

    /// Copies a file into its targets while it is read, then compares its checksum.
    fn read_file(
        &self,
        entry: &FileEntry,
        targets: &BTreeMap<String, Target>,
    ) -> Result<(), CheckpointError> {
        let place = self.folder.place(&entry.name);
        let file = self.folder.open(&entry.name, entry.size)?;
        let file = file.ok_or_else(|| torn(&place, "is missing".to_owned()))?;
        let mut file = Hashed { file, hash: Sha256::new() };
        let unreadable = |error| CheckpointError::io("read", Path::new(&place), error);
        let (metadata, _) = read_header(&mut file, entry.size).map_err(|error| match error {
            HeaderError::Io(error) => unreadable(error),
            other => torn(&place, format!("is not a safetensors file: {other}")),
        })?;
        if let Some(missing) = targets.keys().find(|name| metadata.info(name).is_none()) {
            return Err(torn(&place, format!("lacks `{missing}`")));
        }
        let mut names = metadata.offset_keys();
        names.sort_by_key(|name| metadata.info(name).map(|info| info.data_offsets));
        let mut buffer = vec![0; CHUNK * 4];
        for name in names {
            let (begin, end) = metadata.info(&name).map_or((0, 0), |info| info.data_offsets);
            let target = targets.get(&name);
            let bytes = end.saturating_sub(begin);
            let held = target.map_or(0, |target| target.held.end.saturating_sub(target.held.start));
            // A shard may end with padding.
            if (bytes as i64) < held.saturating_mul(4) {
                return Err(torn(&place, format!("holds too few elements of `{name}`")));
            }
            for start in (0..bytes).step_by(CHUNK * 4) {
                let length = bytes.saturating_sub(start).min(CHUNK * 4);
                let Some(chunk) = buffer.get_mut(..length) else { continue };
                file.read_exact(chunk).map_err(unreadable)?;
                crate::heartbeat::advance();
                if let Some(target) = target {
                    target.copy((start / 4) as i64, chunk)?;
                }
            }
        }
        let (sha256, expected) = (format!("{:x}", file.hash.finalize()), &entry.sha256);
        if sha256 == *expected {
            return Ok(());
        }
        let detail = format!("was altered: its SHA-256 is {sha256}, expected {expected}");
        Err(torn(&place, detail))
    }

    /// Elements of a block.
    fn numel(&self, (role, block, _): Piece) -> i64 {
        let shape = self.shapes.get(&role);
        shape.and_then(|shape| shape.block_numels.get(block)).copied().unwrap_or_default()
    }
}

fn name_of((role, block, part): Piece) -> String {
    tensor_name(role, block, PARTS.get(part).copied().unwrap_or_default())
}

impl Target {
    /// Copies what is wanted of the elements that the file holds from its element `start` on.
    fn copy(&self, start: i64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let begin = self.held.start.saturating_add(start);
        let end = begin.saturating_add((bytes.len() / 4) as i64).min(self.held.end);
        let read = begin..end;
        let shared = overlap(&read, &self.wanted);
        if shared.is_empty() {
            return Ok(());
        }
        let length = shared.end.saturating_sub(shared.start);
        let byte = |element: i64| (element.saturating_sub(begin) as usize).saturating_mul(4);
        let wanted = bytes.get(byte(shared.start)..byte(shared.end)).unwrap_or_default();
        let values = Tensor::f_from_data_size(wanted, &[length], Kind::Float)?;
        let start = shared.start.saturating_sub(self.wanted.start);
        self.tensor.f_narrow(0, start, length)?.f_copy_(&values)?;
        Ok(())
    }
}

/// A file that is hashed while it is read.
struct Hashed {
    file: Box<dyn Read>,
    hash: Sha256,
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.file.read(buffer)?;
        self.hash.update(buffer.get(..length).unwrap_or_default());
        Ok(length)
    }
}

/// Elements of a block of `numel` in the shard of rank `rank`, without padding.
fn part_of(numel: i64, rank: u32, world_size: u32) -> Range<i64> {
    let shard = shard_numel(numel, world_size);
    let start = shard.saturating_mul(i64::from(rank)).min(numel);
    start..start.saturating_add(shard).min(numel)
}

fn overlap(a: &Range<i64>, b: &Range<i64>) -> Range<i64> {
    a.start.max(b.start)..a.end.min(b.end)
}
