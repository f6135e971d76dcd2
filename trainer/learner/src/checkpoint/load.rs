//! Checkpoint loading: checks that a checkpoint is complete, unaltered and of these models, and
//! restores it on any number of ranks.

use std::collections::BTreeMap;
use std::ops::Range;

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::checkpoint::ObjectiveState;
use rljob_protocol::version::Version;
use rljob_storage::{MAX_MANIFEST, RunStore, StorageError};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use tch::{Kind, Tensor};

use super::CheckpointError;
use super::manifest::{
    FORMAT, FORMAT_WITH_ROLES, FileEntry, MANIFEST_FILE, Manifest, ModelShape, OptimizerProgress,
    role_name, shard_file,
};
use super::shard::{PARTS, tensor_name};
use crate::fsdp::shard_numel;

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

/// Reads the shards of rank `rank` of `world_size` from checkpoint `version` in `folder`, for the
/// models of `shapes`, by role.
///
/// # Errors
/// [`CheckpointError::Torn`] if a file is missing, truncated or altered; [`CheckpointError::Other`]
/// if its version or models differ.
pub fn load(
    folder: &RunStore,
    version: Version,
    shapes: &BTreeMap<ModelRole, ModelShape>,
    rank: u32,
    world_size: u32,
) -> Result<Checkpoint, CheckpointError> {
    let manifest = read_manifest(folder)?;
    check_identity(folder, &manifest, version, shapes)?;
    check_files(folder, &manifest)?;
    let parts: Vec<Part<'_>> =
        shapes.iter().map(|(role, shape)| Part::new(*role, shape, rank, world_size)).collect();
    for (source, entry) in (0..manifest.world_size).zip(&manifest.files) {
        if !parts.iter().any(|part| part.overlaps(source, manifest.world_size)) {
            continue;
        }
        let bytes = read_checked(folder, entry)?;
        crate::heartbeat::advance();
        let place = folder.place(&shard_file(source, manifest.world_size));
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|error| torn(&place, format!("is not a safetensors file: {error}")))?;
        for part in &parts {
            part.copy_from(&file, &place, source, manifest.world_size)?;
        }
    }
    let optimizer = |role| match manifest.roles.get(role_name(role)) {
        Some(part) => part.optimizer,
        None => manifest.optimizer,
    };
    let restored = |part: Part<'_>| {
        (part.role, Restored { blocks: part.blocks, optimizer: optimizer(part.role) })
    };
    let objective = manifest.objective;
    Ok(Checkpoint { models: parts.into_iter().map(restored).collect(), objective })
}

/// A model's shards that are being read.
struct Part<'a> {
    role: ModelRole,
    shape: &'a ModelShape,
    /// Elements of each block in this rank's shard.
    wanted: Vec<Range<i64>>,
    blocks: Vec<[Tensor; 3]>,
}

impl<'a> Part<'a> {
    fn new(role: ModelRole, shape: &'a ModelShape, rank: u32, world_size: u32) -> Self {
        let shard = |&numel: &i64| {
            let options = (Kind::Float, tch::Device::Cpu);
            [(); 3].map(|()| Tensor::zeros([shard_numel(numel, world_size)], options))
        };
        let wanted = ranges(shape, rank, world_size);
        Self { role, shape, wanted, blocks: shape.block_numels.iter().map(shard).collect() }
    }

    /// Whether rank `source` of `world_size` wrote elements that this rank needs.
    fn overlaps(&self, source: u32, world_size: u32) -> bool {
        let held = ranges(self.shape, source, world_size);
        held.iter().zip(&self.wanted).any(|(held, wanted)| !overlap(held, wanted).is_empty())
    }

    fn copy_from(
        &self,
        file: &SafeTensors<'_>,
        place: &str,
        source: u32,
        world_size: u32,
    ) -> Result<(), CheckpointError> {
        let held = ranges(self.shape, source, world_size).into_iter().zip(&self.wanted);
        for (block, ((held, wanted), targets)) in held.zip(&self.blocks).enumerate() {
            let shared = overlap(&held, wanted);
            if shared.is_empty() {
                continue;
            }
            let length = shared.end.saturating_sub(shared.start);
            for (part, target) in PARTS.iter().zip(targets) {
                let name = tensor_name(self.role, block, part);
                let view = file
                    .tensor(&name)
                    .map_err(|error| torn(place, format!("lacks `{name}`: {error}")))?;
                let byte =
                    |element: i64| (element.saturating_sub(held.start) as usize).saturating_mul(4);
                let data = view
                    .data()
                    .get(byte(shared.start)..byte(shared.end))
                    .ok_or_else(|| torn(place, format!("holds too few elements of `{name}`")))?;
                let values = Tensor::f_from_data_size(data, &[length], Kind::Float)?;
                target
                    .f_narrow(0, shared.start.saturating_sub(wanted.start), length)?
                    .f_copy_(&values)?;
            }
        }
        Ok(())
    }
}

/// Elements of each block in the shard of rank `rank`, without padding.
fn ranges(shape: &ModelShape, rank: u32, world_size: u32) -> Vec<Range<i64>> {
    shape.block_numels.iter().map(|&numel| part_of(numel, rank, world_size)).collect()
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

fn check_identity(
    folder: &RunStore,
    manifest: &Manifest,
    version: Version,
    shapes: &BTreeMap<ModelRole, ModelShape>,
) -> Result<(), CheckpointError> {
    let other = |found: String, expected: String| {
        Err(CheckpointError::Other {
            place: folder.place("").trim_end_matches('/').to_owned(),
            found,
            expected,
        })
    };
    if ![FORMAT, FORMAT_WITH_ROLES].contains(&manifest.format) {
        let expected = format!("format {FORMAT} or {FORMAT_WITH_ROLES}");
        return other(format!("of format {}", manifest.format), expected);
    }
    if manifest.version != version {
        return other(manifest.version.to_string(), version.to_string());
    }
    let found: BTreeMap<&str, &ModelShape> = manifest
        .roles
        .iter()
        .map(|(role, part)| (role.as_str(), &part.model))
        .chain([(role_name(ModelRole::Policy), &manifest.model)])
        .collect();
    let expected: BTreeMap<&str, &ModelShape> =
        shapes.iter().map(|(role, shape)| (role_name(*role), shape)).collect();
    if found == expected { Ok(()) } else { other(describe(&found), describe(&expected)) }
}

fn describe(shapes: &BTreeMap<&str, &ModelShape>) -> String {
    let describe = |(role, shape): (&&str, &&ModelShape)| {
        let numel = shape.block_numels.iter().sum::<i64>();
        let base = shape.base_sha256.as_ref();
        let base = base.map(|base| format!(", adapters of the base {base:.12}"));
        format!(
            "a {role} model of {numel} parameters with layout {:.12}{}",
            shape.sha256,
            base.unwrap_or_default()
        )
    };
    shapes.iter().map(describe).collect::<Vec<_>>().join(" and ")
}

fn read_manifest(folder: &RunStore) -> Result<Manifest, CheckpointError> {
    let place = folder.place(MANIFEST_FILE);
    let missing = || StorageError::Io {
        action: "read",
        place: place.clone(),
        source: std::io::ErrorKind::NotFound.into(),
    };
    let bytes = folder.read(MANIFEST_FILE, MAX_MANIFEST)?.ok_or_else(missing)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| torn(&place, format!("is not a manifest: {error}")))
}

/// Checks that every file is listed and has its size. Checksums are verified on reading.
fn check_files(folder: &RunStore, manifest: &Manifest) -> Result<(), CheckpointError> {
    let ranks = manifest.world_size;
    let listed = manifest.files.iter().map(|entry| entry.name.clone());
    if ranks == 0 || !listed.eq((0..ranks).map(|rank| shard_file(rank, ranks))) {
        return Err(torn(
            &folder.place(MANIFEST_FILE),
            format!("does not list one file for each of its {ranks} ranks"),
        ));
    }
    for entry in &manifest.files {
        match folder.size(&entry.name)? {
            Some(size) if size == entry.size => {}
            Some(size) => {
                return Err(torn(
                    &folder.place(&entry.name),
                    format!("has {size} bytes, expected {}", entry.size),
                ));
            }
            None => return Err(torn(&folder.place(&entry.name), "is missing".to_owned())),
        }
    }
    Ok(())
}

fn read_checked(folder: &RunStore, entry: &FileEntry) -> Result<Vec<u8>, CheckpointError> {
    let place = folder.place(&entry.name);
    let bytes = folder
        .read(&entry.name, entry.size)?
        .ok_or_else(|| torn(&place, "is missing".to_owned()))?;
    let sha256 = format!("{:x}", Sha256::digest(&bytes));
    if sha256 == entry.sha256 {
        Ok(bytes)
    } else {
        Err(torn(
            &place,
            format!("was altered: its SHA-256 is {sha256}, expected {}", entry.sha256),
        ))
    }
}

fn torn(place: &str, detail: String) -> CheckpointError {
    CheckpointError::Torn { place: place.to_owned(), detail }
}
