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
use tch::{Device, Kind, Tensor};

use super::CheckpointError;
use super::files::{Block, division, file_names};
use super::manifest::{
    FORMAT, FORMAT_WITH_FILES, FORMAT_WITH_ROLES, FileEntry, MANIFEST_FILE, Manifest, ModelShape,
    OptimizerProgress, role_name,
};
use super::shard::{PARTS, tensor_name};
use crate::fsdp::shard_numel;
use crate::parallel;

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
/// models of `shapes`, by role. Threads read its files.
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
    let groups = division(shapes, manifest.world_size, manifest.file_bytes.unwrap_or(u64::MAX));
    check_files(folder, &manifest, groups.len())?;
    let reader = Reader { folder, manifest: &manifest, shapes, shard: (rank, world_size) };
    let files = groups.iter().enumerate().map(|(file, blocks)| {
        let of_ranks = manifest.files.iter().skip(file).step_by(groups.len());
        (of_ranks.collect(), blocks.as_slice())
    });
    let groups = parallel::map(files.collect(), |(files, blocks)| reader.read(files, blocks))?;
    let mut models: BTreeMap<ModelRole, Restored> = BTreeMap::new();
    for ((role, _), tensors) in groups.into_iter().flatten() {
        let optimizer =
            manifest.roles.get(role_name(role)).map_or(manifest.optimizer, |part| part.optimizer);
        let model =
            models.entry(role).or_insert_with(|| Restored { blocks: Vec::new(), optimizer });
        model.blocks.push(tensors);
    }
    Ok(Checkpoint { models, objective: manifest.objective })
}

/// Reads the shards of one rank.
struct Reader<'a> {
    folder: &'a RunStore,
    manifest: &'a Manifest,
    shapes: &'a BTreeMap<ModelRole, ModelShape>,
    /// The rank and the number of ranks.
    shard: (u32, u32),
}

impl Reader<'_> {
    /// The shards of `blocks` from the files that have them, one of each rank that wrote.
    fn read(
        &self,
        files: Vec<&FileEntry>,
        blocks: &[Block],
    ) -> Result<Vec<(Block, [Tensor; 3])>, CheckpointError> {
        let (rank, world_size) = self.shard;
        let zeros = |block: &Block| {
            let shard = [shard_numel(self.numel(*block), world_size)];
            (*block, [(); 3].map(|()| Tensor::zeros(shard, (Kind::Float, Device::Cpu))))
        };
        let mut shards: Vec<_> = blocks.iter().map(zeros).collect();
        for (source, entry) in (0..self.manifest.world_size).zip(files) {
            let overlapping = |block: Block| {
                let held = part_of(self.numel(block), source, self.manifest.world_size);
                let wanted = part_of(self.numel(block), rank, world_size);
                (!overlap(&held, &wanted).is_empty()).then_some((held, wanted))
            };
            if !blocks.iter().any(|block| overlapping(*block).is_some()) {
                continue;
            }
            let bytes = read_checked(self.folder, entry)?;
            crate::heartbeat::advance();
            let place = self.folder.place(&entry.name);
            let file = SafeTensors::deserialize(&bytes)
                .map_err(|error| torn(&place, format!("is not a safetensors file: {error}")))?;
            for (block, targets) in &mut shards {
                if let Some((held, wanted)) = overlapping(*block) {
                    copy((&file, &place), *block, (&held, &wanted), targets)?;
                }
            }
        }
        Ok(shards)
    }

    /// Elements of a block.
    fn numel(&self, (role, block): Block) -> i64 {
        let shape = self.shapes.get(&role);
        shape.and_then(|shape| shape.block_numels.get(block)).copied().unwrap_or_default()
    }
}

/// Copies what a file holds of a block, and is wanted of it, to the targets, which are all wanted.
fn copy(
    (file, place): (&SafeTensors<'_>, &str),
    (role, block): Block,
    (held, wanted): (&Range<i64>, &Range<i64>),
    targets: &mut [Tensor; 3],
) -> Result<(), CheckpointError> {
    let shared = overlap(held, wanted);
    let length = shared.end.saturating_sub(shared.start);
    for (part, target) in PARTS.iter().zip(targets) {
        let name = tensor_name(role, block, part);
        let view =
            file.tensor(&name).map_err(|error| torn(place, format!("lacks `{name}`: {error}")))?;
        let byte = |element: i64| (element.saturating_sub(held.start) as usize).saturating_mul(4);
        let data = view
            .data()
            .get(byte(shared.start)..byte(shared.end))
            .ok_or_else(|| torn(place, format!("holds too few elements of `{name}`")))?;
        let values = Tensor::f_from_data_size(data, &[length], Kind::Float)?;
        if length == target.numel() as i64 {
            *target = values;
        } else {
            let start = shared.start.saturating_sub(wanted.start);
            target.f_narrow(0, start, length)?.f_copy_(&values)?;
        }
    }
    Ok(())
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
    if ![FORMAT, FORMAT_WITH_ROLES, FORMAT_WITH_FILES].contains(&manifest.format) {
        let expected = format!("format {FORMAT} to {FORMAT_WITH_FILES}");
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
fn check_files(
    folder: &RunStore,
    manifest: &Manifest,
    count: usize,
) -> Result<(), CheckpointError> {
    let ranks = manifest.world_size;
    let listed = manifest.files.iter().map(|entry| entry.name.clone());
    if ranks == 0 || !listed.eq((0..ranks).flat_map(|rank| file_names(rank, ranks, count))) {
        return Err(torn(
            &folder.place(MANIFEST_FILE),
            format!("does not list {count} files for each of its {ranks} ranks"),
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
