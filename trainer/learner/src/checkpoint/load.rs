//! Reads a checkpoint back, after checking that it is complete, unaltered and of this model; also
//! for another number of ranks than wrote it.

use std::ops::Range;

use rljob_protocol::version::Version;
use rljob_storage::{RunStore, StorageError};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use tch::{Kind, Tensor};

use super::CheckpointError;
use super::manifest::{
    FORMAT, FileEntry, MANIFEST_FILE, Manifest, ModelShape, OptimizerProgress, hex, shard_file,
};
use super::shard::{PARTS, tensor_name};
use crate::fsdp::shard_numel;

/// A rank's part of a checkpoint.
#[derive(Debug)]
pub struct Restored {
    /// By block: fp32 shards of master weights, first and second moment.
    pub blocks: Vec<[Tensor; 3]>,
    /// What the optimizer counted.
    pub optimizer: OptimizerProgress,
}

/// Reads rank `rank` of `world_size`'s part of checkpoint `version`, whose folder is `folder`.
///
/// # Errors
/// [`CheckpointError::Torn`] if a file is missing, cut off or altered; [`CheckpointError::Other`]
/// if it is another checkpoint or of another model.
pub fn load(
    folder: &RunStore,
    version: Version,
    model: &ModelShape,
    rank: u32,
    world_size: u32,
) -> Result<Restored, CheckpointError> {
    let manifest = read_manifest(folder)?;
    check_identity(folder, &manifest, version, model)?;
    check_files(folder, &manifest)?;
    let wanted: Vec<Range<i64>> =
        model.block_numels.iter().map(|&numel| part_of(numel, rank, world_size)).collect();
    let shard = |&numel: &i64| {
        [(); 3].map(|()| {
            Tensor::zeros([shard_numel(numel, world_size)], (Kind::Float, tch::Device::Cpu))
        })
    };
    let mut blocks: Vec<[Tensor; 3]> = model.block_numels.iter().map(shard).collect();
    for source in 0..manifest.world_size {
        let held: Vec<Range<i64>> = model
            .block_numels
            .iter()
            .map(|&numel| part_of(numel, source, manifest.world_size))
            .collect();
        if held.iter().zip(&wanted).all(|(held, wanted)| overlap(held, wanted).is_empty()) {
            continue;
        }
        let bytes = read_checked(folder, &manifest.files[source as usize])?;
        crate::heartbeat::advance();
        let place = folder.place(&shard_file(source, manifest.world_size));
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|error| torn(&place, format!("is not a safetensors file: {error}")))?;
        for (block, parts) in blocks.iter_mut().enumerate() {
            let shared = overlap(&held[block], &wanted[block]);
            copy_block(
                &file,
                &place,
                block,
                parts,
                &shared,
                held[block].start,
                wanted[block].start,
            )?;
        }
    }
    Ok(Restored { blocks, optimizer: manifest.optimizer })
}

/// Elements of a block of `numel` that rank `rank` holds, padding left out.
fn part_of(numel: i64, rank: u32, world_size: u32) -> Range<i64> {
    let shard = shard_numel(numel, world_size);
    (shard * i64::from(rank)).min(numel)..(shard * (i64::from(rank) + 1)).min(numel)
}

fn overlap(a: &Range<i64>, b: &Range<i64>) -> Range<i64> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn copy_block(
    file: &SafeTensors<'_>,
    place: &str,
    block: usize,
    parts: &[Tensor; 3],
    shared: &Range<i64>,
    source_start: i64,
    target_start: i64,
) -> Result<(), CheckpointError> {
    if shared.is_empty() {
        return Ok(());
    }
    for (part, target) in PARTS.iter().zip(parts) {
        let name = tensor_name(block, part);
        let view =
            file.tensor(&name).map_err(|error| torn(place, format!("lacks `{name}`: {error}")))?;
        let bytes = ((shared.start - source_start) as usize * 4)
            ..((shared.end - source_start) as usize * 4);
        let data = view
            .data()
            .get(bytes)
            .ok_or_else(|| torn(place, format!("holds too few elements of `{name}`")))?;
        let source = Tensor::f_from_data_size(data, &[shared.end - shared.start], Kind::Float)?;
        target
            .f_narrow(0, shared.start - target_start, shared.end - shared.start)?
            .f_copy_(&source)?;
    }
    Ok(())
}

fn check_identity(
    folder: &RunStore,
    manifest: &Manifest,
    version: Version,
    model: &ModelShape,
) -> Result<(), CheckpointError> {
    let other = |found: String, expected: String| {
        Err(CheckpointError::Other {
            place: folder.place("").trim_end_matches('/').to_owned(),
            found,
            expected,
        })
    };
    if manifest.format != FORMAT {
        return other(format!("of format {}", manifest.format), format!("format {FORMAT}"));
    }
    if manifest.version != version {
        return other(manifest.version.to_string(), version.to_string());
    }
    if manifest.model != *model {
        let describe = |model: &ModelShape| {
            format!(
                "a model of {} parameters with layout {:.12}",
                model.block_numels.iter().sum::<i64>(),
                model.sha256
            )
        };
        return other(describe(&manifest.model), describe(model));
    }
    Ok(())
}

fn read_manifest(folder: &RunStore) -> Result<Manifest, CheckpointError> {
    let place = folder.place(MANIFEST_FILE);
    let missing = || StorageError::Io {
        action: "read",
        place: place.clone(),
        source: std::io::ErrorKind::NotFound.into(),
    };
    let bytes = folder.read(MANIFEST_FILE)?.ok_or_else(missing)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| torn(&place, format!("is not understood: {error}")))
}

/// Every file is listed and has its size; checksums follow for those that are read.
fn check_files(folder: &RunStore, manifest: &Manifest) -> Result<(), CheckpointError> {
    let expected: Vec<String> =
        (0..manifest.world_size).map(|rank| shard_file(rank, manifest.world_size)).collect();
    if !manifest.files.iter().map(|entry| &entry.name).eq(&expected) {
        return Err(torn(
            &folder.place(MANIFEST_FILE),
            format!("does not list the files {expected:?}"),
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
    let bytes = folder.read(&entry.name)?.ok_or_else(|| torn(&place, "is missing".to_owned()))?;
    let sha256 = hex(&Sha256::digest(&bytes));
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
