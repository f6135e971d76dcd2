//! Training of adapters with dropout of their inputs: masks repeat after a restart, on other
//! numbers of ranks and when activations are computed again, and differ between steps.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Activations;
use rljob_protocol::metrics;
use serde_json::{Value, json};

use super::fixture::{
    assert_ranks_agree, batch, small_model, train, trainer, weights, without_durations,
};
use super::lora::{grpo, merged_bits, with_lora};
use super::resume::{BEFORE, checkpoint, restore_point, restored};
use crate::ranks::Ranks;

fn with_dropout(algorithm: &Value, minibatches: u32) -> RLJobSpec {
    let mut spec = with_lora(algorithm, minibatches);
    spec.lora.as_mut().unwrap().dropout = 0.2;
    spec
}

/// Algorithms whose losses get chunks, whole micro-batches, values and scores.
fn algorithms() -> [Value; 3] {
    let gspo = json!({"grpo": {"ratioLevel": "Sequence", "epochs": 2}});
    [grpo(), gspo, json!({"ppo": {"epochs": 2}})]
}

#[test]
fn two_ranks_have_the_metrics_of_one_and_repeat_bit_for_bit() {
    let folder = small_model();
    for algorithm in algorithms() {
        assert_ranks_agree(|ranks| {
            let mut trainer = trainer(with_dropout(&algorithm, 2), folder.path(), ranks);
            (train(&mut trainer, 1..=3, 2), weights(&trainer))
        });
    }
}

#[test]
fn a_restart_from_a_checkpoint_has_the_masks_of_the_uninterrupted_run() {
    let folder = small_model();
    for algorithm in algorithms() {
        let spec = with_dropout(&algorithm, 2);
        let run = tempfile::tempdir().unwrap();
        let point = restore_point(run.path(), 0);
        let mut uninterrupted = trainer(spec.clone(), folder.path(), Ranks::alone());
        train(&mut uninterrupted, 1..=BEFORE, 2);
        checkpoint(&uninterrupted, &point).wait().unwrap();
        let after = train(&mut uninterrupted, BEFORE + 1..=5, 2);
        let mut resumed = restored(&spec, folder.path(), &point, Ranks::alone());
        assert_eq!(train(&mut resumed, BEFORE + 1..=5, 2), after);
        assert_eq!(merged_bits(&mut resumed), merged_bits(&mut uninterrupted));
    }
}

#[test]
fn layers_that_are_computed_again_have_the_same_masks() {
    let folder = small_model();
    let run = |activations| {
        let mut spec = with_dropout(&grpo(), 1);
        spec.training.activations = Some(activations);
        let mut trainer = trainer(spec, folder.path(), Ranks::alone());
        (train(&mut trainer, 1..=2, 1), weights(&trainer))
    };
    let kept = run(Activations::Keep);
    assert_eq!(run(Activations::Recompute), kept);
    assert_eq!(run(Activations::Selective), kept);
}

#[test]
fn masks_differ_between_steps_and_validation_has_none() {
    let folder = small_model();
    // Adapters that are not 0, which a learning rate of 0 keeps.
    let mut spec = with_dropout(&json!({"sft": {}}), 1);
    spec.optimizer.learning_rate = 1e-2;
    let run = tempfile::tempdir().unwrap();
    let mut first = trainer(spec.clone(), folder.path(), Ranks::alone());
    train(&mut first, 1..=BEFORE, 1);
    checkpoint(&first, &restore_point(run.path(), 0)).wait().unwrap();
    spec.optimizer.learning_rate = 0.0;
    let resume = |spec: &RLJobSpec| {
        restored(spec, folder.path(), &restore_point(run.path(), 0), Ranks::alone())
    };
    let mut constant = resume(&spec);
    let mut loss = |step: u32| {
        let mut batch = batch(1, 1, 0, 1);
        batch.header.step = step;
        let validation = constant.validate(step, &batch).unwrap().loss;
        let mut report = constant.step(step, &batch).unwrap();
        without_durations(&mut report);
        [validation, report.get(metrics::LOSS).unwrap()]
    };
    let losses = [3, 4, 3].map(&mut loss);
    let bits = losses.map(|losses| losses.map(f64::to_bits));
    assert_eq!(bits[0], bits[2]);
    assert_eq!(bits[0][0], bits[1][0]);
    assert!((losses[0][1] - losses[1][1]).abs() > 1e-5, "{losses:?}");

    spec.lora.as_mut().unwrap().dropout = 0.0;
    let mut without = resume(&spec);
    let report = without.step(3, &batch(3, 1, 0, 1)).unwrap();
    let validation = without.validate(3, &batch(3, 1, 0, 1)).unwrap().loss;
    assert!((report.get(metrics::LOSS).unwrap() - validation).abs() < 1e-6);
}
