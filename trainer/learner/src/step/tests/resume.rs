//! Training from a checkpoint: the same bits on the same number of ranks; on another number, the
//! same restored state and the same metrics up to rounding.

use std::ops::RangeInclusive;
use std::path::Path;
use std::rc::Rc;

use rljob_crds::RLJobSpec;
use rljob_protocol::metrics::StepMetrics;
use rljob_protocol::supervisor::Restore;
use rljob_protocol::version::Version;
use rljob_storage::RunStore;
use serde_json::json;
use tch::{Kind, Tensor};

use super::fixture::{assert_close, on_ranks, small_model, spec, train, trainer, weights};
use crate::checkpoint::{CheckpointWriter, Destination, FILE_BYTES, SnapshotMemory};
use crate::model::{Model, ModelConfig};
use crate::models::TrainedModel;
use crate::ranks::Ranks;
use crate::startup::restored_trainer;
use crate::trainer::Trainer;

/// Steps before the checkpoint.
pub(super) const BEFORE: u32 = 2;
pub(super) const MINIBATCHES: u32 = 2;

/// Bits of weights and moments of each block, and the number of updates.
type WholeState = (Vec<[Vec<u32>; 3]>, u64);

/// Starts to write a checkpoint, as the main loop does.
pub(super) fn checkpoint(trainer: &Trainer, restore: &Restore) -> CheckpointWriter {
    let snapshot = trainer.snapshot(&mut SnapshotMemory::default()).unwrap();
    let mut writer = CheckpointWriter::new(None, trainer.models.shapes());
    let mesh = trainer.ranks.mesh();
    let destination = Destination {
        path: restore.path.clone(),
        bucket: None,
        version: restore.version,
        rank: mesh.shard(),
        world_size: mesh.shards(),
        file_bytes: FILE_BYTES,
    };
    writer.begin(destination, restore.path.clone(), snapshot).unwrap();
    writer
}

pub(super) fn restored(
    spec: &RLJobSpec,
    folder: &Path,
    restore: &Restore,
    ranks: Rc<Ranks>,
) -> Trainer {
    let checkpoint = (restore.version, &RunStore::Folder(restore.path.clone()));
    restored_trainer(
        spec.clone(),
        Model::new(ModelConfig::from_folder(folder).unwrap()),
        ranks,
        checkpoint,
        folder,
    )
    .unwrap()
}

pub(super) fn restore_point(folder: &Path, attempt: u32) -> Restore {
    let version = Version { step: BEFORE, attempt };
    Restore { version, path: folder.join(version.to_string()) }
}

/// Bits of the whole weights and moments of every block, and the number of updates. A collective.
pub(super) fn whole(trainer: &Trainer) -> WholeState {
    let gather = |local: &Tensor, numel: i64| {
        let all = Tensor::empty(
            [local.numel() as i64 * i64::from(trainer.ranks.mesh().shards())],
            (Kind::Float, tch::Device::Cpu),
        );
        match trainer.ranks.shard_group() {
            Some(group) => group.all_gather(&all, local).unwrap(),
            None => all.shallow_clone().copy_(local),
        }
        Vec::<f32>::try_from(all.narrow(0, 0, numel))
            .unwrap()
            .into_iter()
            .map(f32::to_bits)
            .collect()
    };
    let TrainedModel { parameters, optimizer, .. } = &trainer.models.policy;
    let blocks = parameters.shards().iter().zip(optimizer.moments());
    let blocks = blocks.map(|(shard, [exp_avg, exp_avg_sq])| {
        [&shard.master, exp_avg, exp_avg_sq].map(|part| gather(part, shard.numel))
    });
    (blocks.collect(), optimizer.progress().updates)
}

/// Steps of a trainer in two minibatches.
type Train = fn(&mut Trainer, RangeInclusive<u32>, u32) -> Vec<StepMetrics>;

/// Trains with and without a restart after [`BEFORE`] steps, and asserts equal steps and weights,
/// and an equal state, read by `inspect`, at the checkpoint and at the end.
pub(super) fn assert_equal_after_a_restart<T: PartialEq + std::fmt::Debug>(
    spec: &RLJobSpec,
    folder: &Path,
    attempt: u32,
    train: Train,
    inspect: impl Fn(&mut Trainer) -> T,
) {
    let restore = restore_point(folder, attempt);
    let mut uninterrupted = trainer(spec.clone(), folder, Ranks::alone());
    train(&mut uninterrupted, 1..=BEFORE, MINIBATCHES);
    let at_checkpoint = inspect(&mut uninterrupted);
    let mut writer = checkpoint(&uninterrupted, &restore);
    let after = train(&mut uninterrupted, BEFORE + 1..=5, MINIBATCHES);
    writer.wait().unwrap();
    let mut resumed = restored(spec, folder, &restore, Ranks::alone());
    assert_eq!(inspect(&mut resumed), at_checkpoint);
    assert_eq!(train(&mut resumed, BEFORE + 1..=5, MINIBATCHES), after);
    assert_eq!(weights(&resumed), weights(&uninterrupted));
    assert_eq!(inspect(&mut resumed), inspect(&mut uninterrupted));
}

#[test]
fn a_restored_run_has_the_bits_of_an_uninterrupted_one() {
    let folder = small_model();
    let spec = spec(&json!({"grpo": {"klCoefficient": 0.1}}), "Random", MINIBATCHES);
    assert_equal_after_a_restart(&spec, folder.path(), 0, train, |_| ());
}

/// State at the checkpoint of attempt 0, which one rank writes, and metrics of the steps after it.
pub(super) fn uninterrupted(spec: &RLJobSpec, folder: &Path) -> (WholeState, Vec<StepMetrics>) {
    let mut trainer = trainer(spec.clone(), folder, Ranks::alone());
    train(&mut trainer, 1..=BEFORE, MINIBATCHES);
    checkpoint(&trainer, &restore_point(folder, 0)).wait().unwrap();
    (whole(&trainer), train(&mut trainer, BEFORE + 1..=5, MINIBATCHES))
}

#[test]
fn checkpoints_are_restored_bit_for_bit_on_two_four_and_one_ranks() {
    let folder = small_model();
    let spec = spec(&json!({"grpo": {"klCoefficient": 0.1}}), "Random", MINIBATCHES);
    let point = |attempt| restore_point(folder.path(), attempt);
    let (expected, after) = uninterrupted(&spec, folder.path());
    // Each is restored from the checkpoint of the previous number of ranks.
    for (attempt, world_size) in [(1, 2), (2, 4), (3, 1)] {
        let resumed = on_ranks(world_size, |ranks| {
            let mut resumed = restored(&spec, folder.path(), &point(attempt - 1), ranks);
            checkpoint(&resumed, &point(attempt)).wait().unwrap();
            (whole(&resumed), train(&mut resumed, BEFORE + 1..=5, MINIBATCHES))
        });
        for (state, steps) in resumed {
            assert!(
                state == expected,
                "weights or moments on {world_size} ranks differ from the checkpoint"
            );
            assert_close(&after, &steps);
        }
    }
}
