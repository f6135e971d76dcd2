//! Replicas of two trainer pods with two ranks each, compared with four ranks that divide one
//! model.

use std::rc::Rc;

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{ModelRole, Sharding};
use rljob_protocol::metrics::StepMetrics;
use serde_json::json;
use tch::Tensor;

use super::fixture::{assert_close, on_mesh, small_model, spec, train, trainer, weights};
use super::resume::{
    BEFORE, MINIBATCHES, checkpoint, restore_point, restored, uninterrupted, whole,
};
use crate::mesh::GroupSize;
use crate::ranks::Ranks;
use crate::trainer::Trainer;

const TWO_PODS: GroupSize = GroupSize { world_size: 4, local_world_size: 2 };

fn with(sharding: Sharding, mut spec: RLJobSpec) -> RLJobSpec {
    spec.training.sharding = Some(sharding);
    spec
}

/// Bits of whole weights and moments, as `f32`.
fn values(trainer: &Trainer) -> Vec<f32> {
    let (blocks, _) = whole(trainer);
    blocks.into_iter().flatten().flatten().map(f32::from_bits).collect()
}

/// Metrics of all ranks, and weights and moments, after four steps.
fn trained(sharding: Sharding, spec: &RLJobSpec) -> Vec<(Vec<StepMetrics>, Vec<f32>)> {
    let folder = small_model();
    on_mesh(TWO_PODS, sharding, |ranks| {
        let mut trainer = trainer(with(sharding, spec.clone()), folder.path(), ranks);
        (train(&mut trainer, 1..=4, MINIBATCHES), values(&trainer))
    })
}

#[test]
fn two_replicas_have_the_metrics_weights_and_moments_of_four_ranks_and_repeat_bit_for_bit() {
    let grpo = spec(&json!({"grpo": {"klCoefficient": 0.1}}), "Random", MINIBATCHES);
    let ppo = spec(&json!({"ppo": {"epochs": 2}}), "Random", MINIBATCHES);
    let value_head = json!({"ppo": {"valueHead": {"learningRate": 0.01}}});
    let value_head = spec(&value_head, "Random", MINIBATCHES);
    let mut lora = grpo.clone();
    lora.lora = Some(serde_json::from_value(json!({"rank": 4})).unwrap());
    for spec in vec![grpo, ppo, value_head, lora] {
        let full = trained(Sharding::Full, &spec);
        let hybrid = trained(Sharding::Hybrid, &spec);
        for rank in &hybrid {
            assert_eq!(rank, &hybrid[0], "replicas differ");
        }
        assert_close(&full[0].0, &hybrid[0].0);
        let [expected, found] = [&full, &hybrid].map(|ranks| Tensor::from_slice(&ranks[0].1));
        assert!(found.allclose(&expected, 1e-3, 1e-5, false), "weights or moments differ");
        assert_eq!(trained(Sharding::Hybrid, &spec), hybrid);
    }
}

#[test]
fn ranks_with_the_same_shard_have_the_same_weights_also_of_a_critic() {
    let folder = small_model();
    let ppo = spec(&json!({"ppo": {}}), "Random", MINIBATCHES);
    let ranks = on_mesh(TWO_PODS, Sharding::Hybrid, |ranks| {
        let mut trainer = trainer(with(Sharding::Hybrid, ppo.clone()), folder.path(), ranks);
        train(&mut trainer, 1..=3, MINIBATCHES);
        let critic = trainer.models.trained_mut(ModelRole::Critic).unwrap();
        let shards = critic.parameters.shards().iter();
        let critic: Vec<_> =
            shards.map(|shard| Vec::<f32>::try_from(&shard.master).unwrap()).collect();
        (weights(&trainer), critic)
    });
    assert_eq!((&ranks[0], &ranks[1]), (&ranks[2], &ranks[3]));
}

#[test]
fn checkpoints_of_hybrid_and_full_sharding_are_restored_bit_for_bit_with_the_other() {
    let folder = small_model();
    let spec = spec(&json!({"grpo": {"klCoefficient": 0.1}}), "Random", MINIBATCHES);
    let point = |attempt| restore_point(folder.path(), attempt);
    let (expected, after) = uninterrupted(&spec, folder.path());
    let three = GroupSize { world_size: 3, local_world_size: 1 };
    // Each is restored from the checkpoint of the previous sharding.
    for (attempt, size, sharding) in [
        (1, TWO_PODS, Sharding::Hybrid),
        (2, TWO_PODS, Sharding::Full),
        (3, three, Sharding::Hybrid),
        (4, TWO_PODS, Sharding::Gradients),
    ] {
        let resumed = on_mesh(size, sharding, |ranks: Rc<Ranks>| {
            let spec = with(sharding, spec.clone());
            let writes = ranks.is_of_first_replica();
            let mut resumed = restored(&spec, folder.path(), &point(attempt - 1), ranks);
            if writes {
                checkpoint(&resumed, &point(attempt)).wait().unwrap();
            }
            (whole(&resumed), train(&mut resumed, BEFORE + 1..=5, MINIBATCHES))
        });
        for (state, steps) in resumed {
            assert!(state == expected, "{sharding:?}: weights or moments differ");
            assert_close(&after, &steps);
        }
        let manifest = std::fs::read(point(attempt).path.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["worldSize"], size.shards(sharding), "one replica is written");
    }
}
