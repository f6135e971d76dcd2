//! Training of a policy with a value head: no second model, warm-up of the head, ranks, adapters,
//! checkpoints.

use std::rc::Rc;

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::ModelRole;
use rljob_crds::lora::LoraSpec;
use rljob_protocol::metrics;
use serde_json::{Value, json};
use tch::Tensor;

use super::critic::{assert_only_critic_warms_up, assert_returns_are_learned};
use super::fixture::{assert_ranks_agree, small_model, spec, train, trainer, weights};
use super::resume::assert_equal_after_a_restart;
use crate::ranks::Ranks;
use crate::trainer::Trainer;

/// Settings that cover every option of the critic.
fn ppo() -> Value {
    json!({"ppo": {
        "discount": 0.99, "gaeLambda": 0.95, "epochs": 2, "valueClip": 0.05, "klCoefficient": 0.1,
        "valueHead": {"lossWeight": 0.3, "learningRate": 3e-2}, "valueNormalization": {},
    }})
}

fn with_lora(spec: RLJobSpec) -> RLJobSpec {
    RLJobSpec { lora: Some(LoraSpec { rank: 4, alpha: 8.0, ..LoraSpec::default() }), ..spec }
}

/// Bits of this rank's shards of the head, with the moments.
fn head(trainer: &mut Trainer) -> Vec<Vec<u32>> {
    let head = trainer.models.trained_mut(ModelRole::Critic).unwrap();
    let bits = |tensor: &Tensor| {
        Vec::<f32>::try_from(tensor).unwrap().into_iter().map(f32::to_bits).collect()
    };
    let shards = head.parameters.shards().iter().map(|shard| bits(&shard.master));
    shards.chain(head.optimizer.moments().iter().flatten().map(bits)).collect()
}

#[test]
fn the_head_is_the_only_weight_beside_those_of_the_policy_and_begins_with_0() {
    let folder = small_model();
    let grpo = spec(&json!({"grpo": {}}), "Random", 1);
    let grpo = trainer(grpo, folder.path(), Ranks::alone());
    let mut trainer = trainer(spec(&ppo(), "Random", 1), folder.path(), Ranks::alone());
    assert_eq!(weights(&trainer), weights(&grpo));
    let mut shapes = trainer.models.shapes();
    assert_eq!(shapes.remove(&ModelRole::Critic).unwrap().block_numels, [32]);
    assert_eq!(shapes, grpo.models.shapes());
    assert_eq!(head(&mut trainer), vec![vec![0; 32]; 3]);
    let first = train(&mut trainer, 1..=1, 1).remove(0);
    assert_eq!(first.get(metrics::VALUE_MEAN), Some(0.0));
    // The second pass over the batch has the values of an updated head.
    assert!(first.get(metrics::CRITIC_GRADIENT_NORM) > Some(0.0));
    assert_eq!(first.get(metrics::CRITIC_LEARNING_RATE), Some(3e-2));
}

#[test]
fn the_first_step_has_the_values_and_losses_of_a_critic() {
    let folder = small_model();
    let first = |algorithm: &Value| {
        let spec = spec(algorithm, "Random", 1);
        train(&mut trainer(spec, folder.path(), Ranks::alone()), 1..=1, 1).remove(0)
    };
    let critic = first(&json!({"ppo": {}}));
    let head = first(&json!({"ppo": {"valueHead": {}}}));
    // The head of a critic begins with zeros, too: neither changes the gradient of the layers.
    for name in [
        metrics::LOSS,
        metrics::GRADIENT_NORM,
        metrics::VALUE_LOSS,
        metrics::RETURN_MEAN,
        metrics::EXPLAINED_VARIANCE,
    ] {
        assert_eq!(head.get(name), critic.get(name), "{name}");
    }
}

#[test]
fn the_head_learns_the_returns() {
    let head = json!({"lossWeight": 1.0, "learningRate": 5e-2});
    assert_returns_are_learned(&json!({"epochs": 2, "valueHead": head}));
}

#[test]
fn the_loss_of_values_changes_the_weights_of_the_policy() {
    let folder = small_model();
    let after = |loss_weight: f64| {
        let head = json!({"lossWeight": loss_weight, "learningRate": 1e-2});
        let spec = spec(&json!({"ppo": {"valueHead": head}}), "Random", 1);
        let mut trainer = trainer(spec, folder.path(), Ranks::alone());
        train(&mut trainer, 1..=3, 1);
        weights(&trainer)
    };
    assert_ne!(after(0.1), after(1.0));
}

#[test]
fn steps_of_warm_up_train_the_head_only() {
    assert_only_critic_warms_up(&json!({"criticWarmupSteps": 2, "valueHead": {}}), head);
}

#[test]
fn two_ranks_have_the_metrics_of_one_and_repeat_bit_for_bit() {
    let folder = small_model();
    for (minibatches, sharding, has_lora) in
        [(1, "Full", false), (2, "Full", false), (2, "Gradients", false), (2, "Full", true)]
    {
        let run = |ranks: Rc<Ranks>| {
            let mut spec = spec(&ppo(), "Random", minibatches);
            spec.training.sharding = Some(serde_json::from_value(json!(sharding)).unwrap());
            let spec = if has_lora { with_lora(spec) } else { spec };
            let mut trainer = trainer(spec, folder.path(), ranks);
            let steps = train(&mut trainer, 1..=4, minibatches);
            (steps, (weights(&trainer), head(&mut trainer)))
        };
        assert_ranks_agree(run);
    }
}

#[test]
fn a_restored_run_has_the_bits_of_an_uninterrupted_one() {
    for has_lora in [false, true] {
        let folder = small_model();
        let mut spec = spec(&ppo(), "Random", 2);
        spec.training.deterministic = true;
        let spec = if has_lora { with_lora(spec) } else { spec };
        assert_equal_after_a_restart(&spec, folder.path(), 0, train, head);
    }
}

#[test]
fn the_head_of_adapters_is_trained_whole() {
    let folder = small_model();
    let spec = with_lora(spec(&ppo(), "Random", 1));
    let mut trainer = trainer(spec, folder.path(), Ranks::alone());
    let before = head(&mut trainer);
    train(&mut trainer, 1..=2, 1);
    let after = head(&mut trainer);
    assert_eq!(after[0].len(), 32);
    assert!(before[0].iter().zip(&after[0]).all(|(before, after)| before != after));
    // Adapters of two layers; the norm and the head of the policy are frozen.
    assert_eq!(trainer.models.policy.parameters.shards().len(), 2);
}
