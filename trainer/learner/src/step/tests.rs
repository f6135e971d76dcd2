//! Training steps on one and two ranks: golden bits in `bits`, calls of the plan in `calls`,
//! comparison with PyTorch in `peer` and `policy_peer`, PPO in `ppo`, `value_head` and `critic`,
//! adapters in `lora` and `dropout`, pairs in `pairs`, checkpoints in `resume`, custom objectives
//! in `custom`, shared prompts in `prompts`, entropies and epochs in `entropy`, replicas of pods in
//! `hybrid`, batches and helpers in `fixture`.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

mod bits;
mod calls;
mod critic;
mod custom;
mod dropout;
mod entropy;
mod fixture;
mod hybrid;
mod lora;
mod off_policy;
mod pairs;
mod peer;
mod policy_peer;
mod ppo;
mod prompts;
mod resume;
mod value_head;

use std::rc::Rc;

use rljob_protocol::metrics;
use serde_json::json;
use tch::Tensor;

use crate::model::{Model, ModelConfig, Recomputed};
use crate::ranks::Ranks;
use crate::startup::first_trainer;
use fixture::{
    algorithms, assert_close, batch, on_ranks, samples, small_model, spec, train, trainer,
    two_ranks, weights,
};

#[test]
fn two_ranks_have_the_metrics_of_one_and_agree() {
    let folder = small_model();
    for (algorithm, minibatches) in
        algorithms().iter().flat_map(|algorithm| [(algorithm, 1), (algorithm, 2)])
    {
        let mut one =
            trainer(spec(algorithm, "Random", minibatches), folder.path(), Ranks::alone());
        let alone = train(&mut one, 1..=4, minibatches);
        let two = two_ranks(folder.path(), algorithm, 4, minibatches);
        assert_eq!(two[0].0, two[1].0);
        assert_close(&alone, &two[0].0);
    }
}

#[test]
fn the_policy_diverges_from_the_reference_and_a_kl_loss_limits_it() {
    let folder = small_model();
    let divergence = |coefficient: f64| {
        let algorithm =
            json!({"grpo": {"klCoefficient": coefficient, "klTerm": "Loss", "klEstimator": "K3"}});
        let mut trainer = trainer(spec(&algorithm, "Random", 1), folder.path(), Ranks::alone());
        train(&mut trainer, 1..=8, 1)
            .iter()
            .map(|metrics| metrics.get("referenceKl").unwrap())
            .collect::<Vec<_>>()
    };
    let (free, held) = (divergence(1e-9), divergence(100.0));
    assert!(free[0].abs() < 1e-9 && free[7] > 1e-6, "{free:?}");
    assert!(held[7] < free[7], "{held:?} is not below {free:?}");
}

#[test]
fn masked_samples_are_excluded_from_training_and_counts() {
    let folder = small_model();
    let mut masking = spec(&json!({"grpo": {}}), "Random", 1);
    masking.rollout.truncated = rljob_crds::algorithm::Truncated::Mask;
    let step = trainer(masking, folder.path(), Ranks::alone()).step(1, &batch(1, 1, 0, 1)).unwrap();
    let all: u32 = samples(1, 1, 1).iter().map(|sample| sample.row.trainable_tokens).sum();
    assert_eq!(
        step.get(metrics::TRAINABLE_TOKENS),
        Some(f64::from(all - samples(1, 1, 1)[4].row.trainable_tokens))
    );
}

#[test]
fn recomputed_activations_train_the_same_weights() {
    let folder = small_model();
    let weights_of = |layers, selective| {
        let model = Model::new(ModelConfig::from_folder(folder.path()).unwrap())
            .recomputing(Recomputed { layers, selective });
        let mut trainer = first_trainer(
            spec(&json!({"grpo": {}}), "Random", 2),
            model,
            Ranks::alone(),
            folder.path(),
        )
        .unwrap();
        train(&mut trainer, 1..=3, 2);
        Tensor::cat(
            &trainer
                .models
                .policy
                .parameters
                .shards()
                .iter()
                .map(|shard| shard.master.shallow_clone())
                .collect::<Vec<_>>(),
            0,
        )
    };
    let kept = weights_of(0, 0);
    for (layers, selective) in [(1, 0), (2, 0), (0, 2), (1, 1)] {
        let weights = weights_of(layers, selective);
        assert!(weights.allclose(&kept, 1e-5, 1e-6, false), "{layers}, {selective}");
    }
}

#[test]
fn the_same_batches_give_the_same_bits() {
    let folder = small_model();
    for algorithm in algorithms() {
        assert_eq!(
            two_ranks(folder.path(), &algorithm, 3, 2),
            two_ranks(folder.path(), &algorithm, 3, 2)
        );
    }
}

#[test]
fn validation_has_the_loss_of_training_on_any_number_of_ranks_and_changes_no_weights() {
    let folder = small_model();
    let sft = spec(&json!({"sft": {}}), "Random", 1);
    let validate = |ranks: Rc<Ranks>| {
        let mut trainer = trainer(sft.clone(), folder.path(), ranks);
        let (before, rank, world_size) =
            (weights(&trainer), trainer.ranks.rank(), trainer.ranks.world_size());
        let report = trainer.validate(1, &batch(1, 1, rank, world_size)).unwrap();
        assert_eq!(weights(&trainer), before);
        (report.loss, report.tokens, report.sequences, train(&mut trainer, 1..=1, 1).remove(0))
    };
    let (loss, tokens, sequences, trained) = validate(Ranks::alone());
    assert!(
        (loss - trained.get(metrics::LOSS).unwrap()).abs() <= 1e-6 * loss,
        "{loss} is not {trained:?}"
    );
    assert_eq!((tokens, sequences), (trained.get(metrics::TRAINABLE_TOKENS).unwrap() as u64, 6));
    let two = on_ranks(2, validate);
    assert_eq!(two[0].0.to_bits(), two[1].0.to_bits());
    assert!((two[0].0 - loss).abs() <= 1e-6 * loss, "{} on two ranks, {loss} on one", two[0].0);
    assert_eq!((two[0].1, two[0].2), (tokens, sequences));
}

#[test]
fn a_loss_that_is_never_finite_fails_with_the_samples() {
    let folder = small_model();
    let mut trainer =
        trainer(spec(&json!({"grpo": {}}), "Random", 1), folder.path(), Ranks::alone());
    let _ = trainer.models.policy.parameters.shards()[3].master.shallow_clone().fill_(f64::NAN);
    let skipped: Vec<_> =
        train(&mut trainer, 1..=4, 1).iter().map(|step| step.get(metrics::SKIPPED)).collect();
    assert_eq!(skipped, [Some(1.0); 4]);
    let error = trainer.step(5, &batch(5, 1, 0, 1)).unwrap_err();
    let expected = "loss or gradient was not finite in 5 updates in a row; \
                    the last update's samples are [0, 1, 2, 3, 4, 5] of the batch";
    assert_eq!(error.to_string(), expected);
}
