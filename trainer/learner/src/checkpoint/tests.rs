//! Saving and loading checkpoints in temporary folders; two ranks write from two threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::version::Version;
use rljob_storage::RunStore;
use tch::{Kind, Tensor};

use super::files::file_names;
use super::writer::write;
use super::{
    CheckpointError, Destination, FILE_BYTES, ModelShape, OptimizerProgress, Places, Snapshot,
    SnapshotMemory, load,
};
use crate::coordinator_client::ClientError;
use crate::fsdp::shard_of;

const HOST: Places = Places { weights: tch::Device::Cpu, moments: tch::Device::Cpu };
const VERSION: Version = Version { step: 12, attempt: 3 };
const PROGRESS: OptimizerProgress = OptimizerProgress { updates: 23, skipped_in_a_row: 1 };

fn model() -> ModelShape {
    ModelShape { sha256: "5eed".repeat(16), block_numels: vec![10, 7], base_sha256: None }
}

/// Shapes of a checkpoint of the policy alone.
fn policy(shape: ModelShape) -> BTreeMap<ModelRole, ModelShape> {
    BTreeMap::from([(ModelRole::Policy, shape)])
}

/// Whole blocks with their moments: distinct values whose bits a conversion would change.
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

fn snapshot(roles: &[ModelRole], rank: u32, world_size: u32) -> Snapshot {
    let shards = shards(rank, world_size);
    let mut snapshot = Snapshot::default();
    for &role in roles {
        let blocks = shards.iter().map(|parts| [&parts[0], &parts[1], &parts[2]]);
        snapshot.add(role, PROGRESS, blocks, &mut SnapshotMemory::default()).unwrap();
    }
    snapshot
}

fn destination(folder: &Path, rank: u32, world_size: u32) -> Destination {
    Destination {
        path: folder.to_owned(),
        bucket: None,
        version: VERSION,
        rank,
        world_size,
        file_bytes: FILE_BYTES,
    }
}

fn save(folder: &Path, roles: &[ModelRole], world_size: u32) {
    save_files(folder, roles, world_size, FILE_BYTES);
}

fn save_files(folder: &Path, roles: &[ModelRole], world_size: u32, file_bytes: u64) {
    let shapes = roles.iter().map(|&role| (role, model())).collect();
    std::thread::scope(|scope| {
        for rank in 0..world_size {
            let shapes = &shapes;
            scope.spawn(move || {
                let snapshot = snapshot(roles, rank, world_size);
                let destination =
                    Destination { file_bytes, ..destination(folder, rank, world_size) };
                write(&destination, shapes, snapshot, || Ok(())).unwrap();
            });
        }
    });
}

fn read(
    folder: &Path,
    roles: &[ModelRole],
    rank: u32,
    world_size: u32,
) -> Vec<(ModelRole, Vec<Vec<u32>>, OptimizerProgress)> {
    let shapes = roles.iter().map(|&role| (role, model())).collect();
    let folder = RunStore::Folder(folder.to_owned());
    let restored = load(&folder, VERSION, &shapes, (rank, world_size), HOST).unwrap().models;
    let part =
        |(role, part): (ModelRole, super::Restored)| (role, bits(&part.blocks), part.optimizer);
    restored.into_iter().map(part).collect()
}

fn bits(blocks: &[[Tensor; 3]]) -> Vec<Vec<u32>> {
    let bits = |tensor: &Tensor| {
        Vec::<f32>::try_from(tensor).unwrap().into_iter().map(f32::to_bits).collect()
    };
    blocks.iter().flatten().map(bits).collect()
}

fn rejection(folder: &Path, version: Version, model: &ModelShape) -> String {
    rejection_of(folder, version, &policy(model.clone()))
}

fn rejection_of(
    folder: &Path,
    version: Version,
    shapes: &BTreeMap<ModelRole, ModelShape>,
) -> String {
    let store = RunStore::Folder(folder.to_owned());
    let error = load(&store, version, shapes, (0, 2), HOST).unwrap_err();
    error.to_string().replace(&folder.display().to_string(), "DIR")
}

#[test]
fn a_checkpoint_is_restored_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &[ModelRole::Policy], 2);
    for rank in 0..2 {
        let expected = vec![(ModelRole::Policy, bits(&shards(rank, 2)), PROGRESS)];
        assert_eq!(read(folder.path(), &[ModelRole::Policy], rank, 2), expected);
    }
}

#[test]
fn a_checkpoint_of_two_ranks_is_restored_on_one_or_three() {
    let folder = tempfile::tempdir().unwrap();
    let roles = [ModelRole::Policy, ModelRole::Critic];
    save(folder.path(), &roles, 2);
    for world_size in [1, 3] {
        for rank in 0..world_size {
            let expected = roles.map(|role| (role, bits(&shards(rank, world_size)), PROGRESS));
            assert_eq!(read(folder.path(), &roles, rank, world_size), expected);
        }
    }
}

#[test]
fn a_checkpoint_whose_ranks_have_several_files_is_restored_on_other_numbers_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let roles = [ModelRole::Policy, ModelRole::Critic];
    save_files(folder.path(), &roles, 2, 1);
    let names: BTreeSet<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".safetensors"))
        .collect();
    assert_eq!(names, (0..2).flat_map(|rank| file_names(rank, 2, 12)).collect());
    for world_size in [1, 2, 3] {
        for rank in 0..world_size {
            let expected = roles.map(|role| (role, bits(&shards(rank, world_size)), PROGRESS));
            assert_eq!(read(folder.path(), &roles, rank, world_size), expected);
        }
    }
    fs::remove_file(folder.path().join(&file_names(1, 2, 12)[2])).unwrap();
    let shapes = roles.iter().map(|&role| (role, model())).collect();
    let store = RunStore::Folder(folder.path().to_owned());
    let error = load(&store, VERSION, &shapes, (0, 2), HOST).unwrap_err().to_string();
    assert!(error.contains("rank-1-of-2-file-2-of-12.safetensors` is missing"), "{error}");
}

/// `testdata/format-1` was written by a release whose checkpoints had no roles.
#[test]
fn checkpoints_of_format_1_are_read_and_written_with_the_same_bytes() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/checkpoint/testdata/format-1");
    let expected = vec![(ModelRole::Policy, bits(&shards(0, 1)), PROGRESS)];
    assert_eq!(read(&recorded, &[ModelRole::Policy], 0, 1), expected);
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &[ModelRole::Policy], 2);
    for entry in fs::read_dir(&recorded).unwrap() {
        let entry = entry.unwrap();
        let written = fs::read(folder.path().join(entry.file_name())).unwrap();
        assert!(written == fs::read(entry.path()).unwrap(), "{entry:?}");
    }
}

#[test]
fn a_checkpoint_without_a_manifest_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &[ModelRole::Policy], 2);
    fs::remove_file(folder.path().join("manifest.json")).unwrap();
    assert_eq!(rejection(folder.path(), VERSION, &model()), "failed to read `DIR/manifest.json`");
}

#[test]
fn a_truncated_or_missing_file_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &[ModelRole::Policy], 2);
    let path = folder.path().join(&file_names(1, 2, 1)[0]);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    let expected = format!(
        "rejected the checkpoint: `DIR/rank-1-of-2.safetensors` has {} bytes, expected {}; \
         remove its folder to restart from the previous one",
        bytes.len() - 5,
        bytes.len()
    );
    assert_eq!(rejection(folder.path(), VERSION, &model()), expected);
    fs::remove_file(&path).unwrap();
    assert!(
        rejection(folder.path(), VERSION, &model())
            .contains("`DIR/rank-1-of-2.safetensors` is missing")
    );
}

#[test]
fn an_altered_file_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &[ModelRole::Policy], 2);
    let path = folder.path().join(&file_names(0, 2, 1)[0]);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(rejection(folder.path(), VERSION, &model()).starts_with(
        "rejected the checkpoint: `DIR/rank-0-of-2.safetensors` was altered: its SHA-256 is "
    ));
}

#[test]
fn a_checkpoint_of_another_version_or_model_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &[ModelRole::Policy], 2);
    let other_version = rejection(folder.path(), Version { step: 13, attempt: 3 }, &model());
    assert_eq!(
        other_version,
        "rejected the checkpoint `DIR`: it is step-12.attempt-3, expected step-13.attempt-3"
    );
    let other = ModelShape { block_numels: vec![10, 8], ..model() };
    assert_eq!(
        rejection(folder.path(), VERSION, &other),
        "rejected the checkpoint `DIR`: it is a policy model of 17 parameters with layout \
         5eed5eed5eed, expected a policy model of 18 parameters with layout 5eed5eed5eed; name a \
         checkpoint of a job with this model, lora and kind of algorithm"
    );
}

#[test]
fn a_checkpoint_of_other_roles_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &[ModelRole::Policy, ModelRole::Critic], 1);
    assert_eq!(
        rejection(folder.path(), VERSION, &model()),
        "rejected the checkpoint `DIR`: it is a critic model of 17 parameters with layout \
         5eed5eed5eed and a policy model of 17 parameters with layout 5eed5eed5eed, expected a \
         policy model of 17 parameters with layout 5eed5eed5eed; name a checkpoint of a job with \
         this model, lora and kind of algorithm"
    );
    save(folder.path(), &[ModelRole::Policy], 1);
    let with_critic = [ModelRole::Policy, ModelRole::Critic].map(|role| (role, model()));
    assert_eq!(
        rejection_of(folder.path(), VERSION, &with_critic.into()),
        "rejected the checkpoint `DIR`: it is a policy model of 17 parameters with layout \
         5eed5eed5eed, expected a critic model of 17 parameters with layout 5eed5eed5eed and a \
         policy model of 17 parameters with layout 5eed5eed5eed; it has no critic: name a \
         checkpoint of a job with this algorithm, or begin with an export (spec.model) and a new \
         critic"
    );
}

#[test]
fn a_checkpoint_of_a_superseded_attempt_is_not_committed() {
    let folder = tempfile::tempdir().unwrap();
    let replaced = || {
        Err(CheckpointError::Commit(
            VERSION,
            ClientError::Fenced("attempt 0 is not the current one".to_owned()),
        ))
    };
    let snapshot = snapshot(&[ModelRole::Policy], 0, 1);
    let destination = destination(folder.path(), 0, 1);
    let error = write(&destination, &policy(model()), snapshot, replaced).unwrap_err();
    assert_eq!(error.to_string(), format!("failed to commit checkpoint {VERSION}"));
    assert!(!folder.path().join("manifest.json").exists());
}
