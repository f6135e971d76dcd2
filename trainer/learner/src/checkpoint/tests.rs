//! Save and load, on temporary folders; two ranks write from two threads.

use std::fs;
use std::path::Path;

use rljob_protocol::version::Version;
use rljob_storage::RunStore;
use tch::{Kind, Tensor};

use super::manifest::shard_file;
use super::writer::write;
use super::{CheckpointError, ModelShape, OptimizerProgress, Place, Restored, Snapshot, load};
use crate::coordinator_client::ClientError;
use crate::fsdp::shard_of;

const VERSION: Version = Version { step: 12, attempt: 3 };
const PROGRESS: OptimizerProgress = OptimizerProgress { updates: 23, skipped_in_a_row: 1 };

fn model() -> ModelShape {
    ModelShape { sha256: "5eed".repeat(16), block_numels: vec![10, 7] }
}

/// Whole blocks, each with its moments: values that differ everywhere, and bits that a conversion
/// would lose.
fn whole() -> Vec<[Tensor; 3]> {
    let part = |numel: i64, offset: f64| {
        (Tensor::arange(numel, (Kind::Float, tch::Device::Cpu)) + offset).reciprocal()
    };
    vec![
        [part(10, 1.0), part(10, 20.0), part(10, 40.0)],
        [part(7, 60.0), part(7, 70.0), part(7, 80.0)],
    ]
}

fn shards(rank: u32, world_size: u32) -> Vec<[Tensor; 3]> {
    whole()
        .iter()
        .map(|parts| [0, 1, 2].map(|part| shard_of(&parts[part], rank, world_size)))
        .collect()
}

fn save(folder: &Path, world_size: u32) {
    std::thread::scope(|scope| {
        for rank in 0..world_size {
            scope.spawn(move || {
                let shards = shards(rank, world_size);
                let snapshot =
                    Snapshot::take(shards.iter().map(|parts| [&parts[0], &parts[1], &parts[2]]))
                        .unwrap();
                let place = Place {
                    path: folder.to_owned(),
                    bucket: None,
                    version: VERSION,
                    rank,
                    world_size,
                };
                write(&place, &model(), PROGRESS, &snapshot, || Ok(())).unwrap();
            });
        }
    });
}

fn bits(blocks: &[[Tensor; 3]]) -> Vec<Vec<u32>> {
    let bits = |tensor: &Tensor| {
        Vec::<f32>::try_from(tensor).unwrap().into_iter().map(f32::to_bits).collect()
    };
    blocks.iter().flatten().map(bits).collect()
}

fn refusal(folder: &Path, version: Version, model: &ModelShape) -> String {
    let error: Result<Restored, CheckpointError> =
        load(&RunStore::Folder(folder.to_owned()), version, model, 0, 2);
    error.unwrap_err().to_string().replace(&folder.display().to_string(), "DIR")
}

#[test]
fn a_checkpoint_gives_back_the_same_bits_on_as_many_ranks() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 2);
    for rank in 0..2 {
        let restored =
            load(&RunStore::Folder(folder.path().to_owned()), VERSION, &model(), rank, 2).unwrap();
        assert_eq!(bits(&restored.blocks), bits(&shards(rank, 2)));
        assert_eq!(restored.optimizer, PROGRESS);
    }
}

#[test]
fn a_checkpoint_of_two_ranks_is_read_by_one_or_three() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 2);
    for world_size in [1, 3] {
        for rank in 0..world_size {
            let restored = load(
                &RunStore::Folder(folder.path().to_owned()),
                VERSION,
                &model(),
                rank,
                world_size,
            )
            .unwrap();
            assert_eq!(
                bits(&restored.blocks),
                bits(&shards(rank, world_size)),
                "rank {rank} of {world_size}"
            );
        }
    }
}

#[test]
fn a_checkpoint_without_its_manifest_is_none() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 2);
    fs::remove_file(folder.path().join("manifest.json")).unwrap();
    assert_eq!(refusal(folder.path(), VERSION, &model()), "failed to read `DIR/manifest.json`");
}

#[test]
fn a_torn_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 2);
    let path = folder.path().join(shard_file(1, 2));
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    let expected = format!(
        "refused the checkpoint: `DIR/rank-1-of-2.safetensors` has {} bytes, expected {}; remove its folder to restart from the one before",
        bytes.len() - 5,
        bytes.len()
    );
    assert_eq!(refusal(folder.path(), VERSION, &model()), expected);
    fs::remove_file(&path).unwrap();
    assert!(
        refusal(folder.path(), VERSION, &model())
            .contains("`DIR/rank-1-of-2.safetensors` is missing")
    );
}

#[test]
fn an_altered_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 2);
    let path = folder.path().join(shard_file(0, 2));
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(refusal(folder.path(), VERSION, &model()).starts_with(
        "refused the checkpoint: `DIR/rank-0-of-2.safetensors` was altered: its SHA-256 is "
    ));
}

#[test]
fn a_checkpoint_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 2);
    let other_version = refusal(folder.path(), Version { step: 13, attempt: 3 }, &model());
    assert_eq!(
        other_version,
        "refused the checkpoint `DIR`: it is step-12.attempt-3, expected step-13.attempt-3"
    );
    let other_model =
        refusal(folder.path(), VERSION, &ModelShape { block_numels: vec![10, 8], ..model() });
    assert_eq!(
        other_model,
        "refused the checkpoint `DIR`: it is a model of 17 parameters with layout 5eed5eed5eed, expected a model of 18 parameters with layout 5eed5eed5eed"
    );
}

#[test]
fn a_checkpoint_of_a_replaced_group_is_not_committed() {
    let folder = tempfile::tempdir().unwrap();
    let shards = shards(0, 1);
    let snapshot =
        Snapshot::take(shards.iter().map(|parts| [&parts[0], &parts[1], &parts[2]])).unwrap();
    let place = Place {
        path: folder.path().to_owned(),
        bucket: None,
        version: VERSION,
        rank: 0,
        world_size: 1,
    };
    let replaced = || {
        Err(CheckpointError::Commit(
            VERSION,
            ClientError::Fenced("attempt 0 is not the current one".to_owned()),
        ))
    };
    let refused = write(&place, &model(), PROGRESS, &snapshot, replaced).unwrap_err();
    assert_eq!(refused.to_string(), format!("the checkpoint {VERSION} is not committed"));
    assert!(!folder.path().join("manifest.json").exists());
}
