//! Training on pairs with `dpo`, `orpo` and `rewardModel`: the first step, learning, ranks,
//! checkpoints, validation.

use std::rc::Rc;

use rljob_crds::RLJobSpec;
use rljob_crds::lora::LoraSpec;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_protocol::metrics::{self, StepMetrics};
use serde_json::{Value, json};

use super::fixture::{
    VOCABULARY, assert_ranks_agree, on_ranks, small_model, spec, trainer, weights,
    without_durations,
};
use super::resume::assert_equal_after_a_restart;
use crate::ranks::Ranks;
use crate::trainer::Trainer;

/// Pairs of a step.
const PAIRS: u32 = 4;

/// Tokens of a sample: two of the prompt, then a completion; chosen ones ascend, rejected ones
/// descend.
fn tokens(step: u32, index: u32) -> Vec<i64> {
    let (pair, is_chosen) = (index / 2, index.is_multiple_of(2));
    let prompt = [1 + (step * 11 + pair * 5) % 40, 3 + pair];
    let length = 3 + (pair * 3 + index + step) % 4;
    let start = 45 + (step + pair) % 8;
    let completion = (0..length).map(|at| if is_chosen { start + at } else { start - at });
    prompt.into_iter().chain(completion).map(|token| i64::from(token % VOCABULARY)).collect()
}

/// A rank's part of a batch: pair `p` is on rank p mod ranks, in minibatch p mod minibatches.
pub(super) fn batch(step: u32, minibatches: u32, (rank, world_size): (u32, u32)) -> RankBatch {
    let row = |index: u32| SampleRow {
        group: index / 2,
        reward: f64::from(u8::from(index.is_multiple_of(2))),
        trainable_tokens: tokens(step, index).len() as u32 - 2,
        rank: (index / 2) / 2 % world_size,
        minibatch: (index / 2) % minibatches,
        truncated: false,
        ended_by_limit: false,
        turn_rewards: Vec::new(),
    };
    let samples: Vec<SampleRow> = (0..2 * PAIRS).map(row).collect();
    let mut mine: Vec<u32> =
        (0..2 * PAIRS).filter(|index| samples[*index as usize].rank == rank).collect();
    mine.sort_by_key(|index| samples[*index as usize].minibatch);
    let sequence = |index: &u32| Sequence {
        sample: *index,
        micro_batch: samples[*index as usize].minibatch,
        tokens: tokens(step, *index).len() as u32,
        segments: Vec::new(),
    };
    let tokens_T: Vec<i64> = mine.iter().flat_map(|index| tokens(step, *index)).collect();
    let mask = |index: &u32| (0..tokens(step, *index).len()).map(|at| u8::from(at >= 2));
    RankBatch {
        loss_mask_T: mine.iter().flat_map(mask).collect(),
        sampler_logprobs_T: vec![0.0; tokens_T.len()],
        teacher_logprobs_T: None,
        header: BatchHeader {
            step,
            rank,
            world_size,
            micro_batch_minibatch: (0..minibatches).collect(),
            sequences: mine.iter().map(sequence).collect(),
            samples,
        },
        tokens_T,
    }
}

fn place(trainer: &Trainer) -> (u32, u32) {
    (trainer.ranks.rank(), trainer.ranks.world_size())
}

fn train(
    trainer: &mut Trainer,
    steps: std::ops::RangeInclusive<u32>,
    minibatches: u32,
) -> Vec<StepMetrics> {
    let place = place(trainer);
    let mut step = |step| {
        let mut report = trainer.step(step, &batch(step, minibatches, place)).unwrap();
        without_durations(&mut report);
        report
    };
    steps.map(&mut step).collect()
}

fn spec_of(algorithm: &Value, minibatches: u32) -> RLJobSpec {
    spec(algorithm, "Random", minibatches)
}

/// The same with adapters.
fn with_lora(spec: &RLJobSpec) -> RLJobSpec {
    let lora = Some(LoraSpec { rank: 4, alpha: 8.0, ..LoraSpec::default() });
    RLJobSpec { lora, ..spec.clone() }
}

/// Every algorithm that learns from pairs, with all weights and with adapters.
fn specs(minibatches: u32) -> Vec<RLJobSpec> {
    let algorithms = [
        json!({"dpo": {"labelSmoothing": 0.1}}),
        json!({"dpo": {"loss": "Ipo", "beta": 0.5}}),
        json!({"orpo": {"lambda": 0.5}}),
        json!({"rewardModel": {}}),
    ];
    let specs = algorithms.iter().map(|algorithm| spec_of(algorithm, minibatches));
    specs.flat_map(|spec| [with_lora(&spec), spec]).collect()
}

#[test]
fn the_first_loss_is_that_of_equal_models_and_training_separates_the_pairs() {
    let folder = small_model();
    for (algorithm, first) in [
        (json!({"dpo": {"beta": 0.5}}), std::f64::consts::LN_2),
        (json!({"dpo": {"beta": 0.5, "loss": "Ipo"}}), 1.0),
        (json!({"rewardModel": {}}), std::f64::consts::LN_2),
    ] {
        let spec = spec_of(&algorithm, 1);
        let mut trainer = trainer(spec, folder.path(), Ranks::alone());
        let steps = train(&mut trainer, 1..=20, 1);
        let of = |step: usize, name| steps[step].get(name).unwrap();
        assert!((of(0, metrics::LOSS) - first).abs() < 1e-6, "{:?}", steps[0]);
        assert!(of(0, metrics::PAIR_MARGIN).abs() < 1e-5, "{:?}", steps[0]);
        assert!(of(19, metrics::LOSS) < 0.9 * first, "{:?}", steps[19]);
        assert_eq!(steps[19].get(metrics::PAIR_ACCURACY), Some(1.0), "{:?}", steps[19]);
        let margin = of(19, metrics::CHOSEN_REWARD) - of(19, metrics::REJECTED_REWARD);
        assert!((margin - of(19, metrics::PAIR_MARGIN)).abs() < 1e-9, "{:?}", steps[19]);
    }
}

#[test]
fn orpo_raises_the_odds_of_chosen_completions_and_learns_them() {
    let folder = small_model();
    let spec = spec_of(&json!({"orpo": {"lambda": 0.5}}), 1);
    let steps = train(&mut trainer(spec, folder.path(), Ranks::alone()), 1..=20, 1);
    let of = |step: usize, name| steps[step].get(name).unwrap();
    let (first, last) = (0, 19);
    let names = [metrics::LOSS, metrics::NEGATIVE_LOG_LIKELIHOOD];
    assert!(names.iter().all(|name| of(last, name) < of(first, name)), "{steps:?}");
    assert!(of(last, metrics::LOG_ODDS_RATIO) > of(first, metrics::LOG_ODDS_RATIO), "{steps:?}");
    for step in [first, last] {
        // The reward is λ times the mean log-probability.
        let sum = 2.0 * of(step, metrics::CHOSEN_REWARD) + of(step, names[1]);
        assert!(sum.abs() < 1e-9, "{:?}", steps[step]);
    }
}

#[test]
fn the_first_step_of_adapters_has_the_metrics_of_all_weights_and_they_separate_the_pairs() {
    let folder = small_model();
    for algorithm in [json!({"dpo": {"beta": 0.5}}), json!({"rewardModel": {}})] {
        let all = spec_of(&algorithm, 1);
        let mut adapters = with_lora(&all);
        adapters.optimizer.learning_rate = 1e-2;
        let first = |spec| train(&mut trainer(spec, folder.path(), Ranks::alone()), 1..=1, 1);
        let names = [metrics::LOSS, metrics::PAIR_MARGIN, metrics::CHOSEN_REWARD];
        let of = |step: &StepMetrics| names.map(|name| step.get(name).map(f64::to_bits));
        assert_eq!(of(&first(adapters.clone())[0]), of(&first(all)[0]), "{algorithm}");
        let mut trainer = trainer(adapters, folder.path(), Ranks::alone());
        let last = train(&mut trainer, 1..=20, 1).remove(19);
        assert!(last.get(metrics::LOSS) < Some(0.5), "{last:?}");
        assert_eq!(last.get(metrics::PAIR_ACCURACY), Some(1.0), "{last:?}");
    }
}

#[test]
fn two_ranks_have_the_metrics_of_one_and_repeat_bit_for_bit() {
    let folder = small_model();
    let specs =
        [1, 2].map(|minibatches| specs(minibatches).into_iter().map(move |one| (one, minibatches)));
    for (spec, minibatches) in specs.into_iter().flatten() {
        let run = |ranks| {
            let mut trainer = trainer(spec.clone(), folder.path(), ranks);
            (train(&mut trainer, 1..=4, minibatches), weights(&trainer))
        };
        assert_ranks_agree(run);
    }
}

#[test]
fn a_restored_run_has_the_bits_of_an_uninterrupted_one() {
    let folder = small_model();
    for (attempt, mut spec) in (0..).zip(specs(2)) {
        spec.training.deterministic = true;
        assert_equal_after_a_restart(&spec, folder.path(), attempt, train, |_| ());
    }
}

#[test]
fn validation_has_loss_accuracy_and_margin_of_training_on_any_number_of_ranks() {
    let folder = small_model();
    for spec in specs(1) {
        let run = |ranks: Rc<Ranks>| {
            let mut trainer = trainer(spec.clone(), folder.path(), ranks);
            train(&mut trainer, 1..=3, 1);
            let (before, place) = (weights(&trainer), place(&trainer));
            let report = trainer.validate(4, &batch(4, 1, place)).unwrap();
            assert_eq!(weights(&trainer), before);
            let trained = train(&mut trainer, 4..=4, 1).remove(0);
            ([Some(report.loss), report.accuracy, report.margin], report.sequences, trained)
        };
        let close = |one: [Option<f64>; 3], other: [Option<f64>; 3]| {
            let pairs = one.into_iter().zip(other);
            pairs.into_iter().all(|(a, b)| (a.unwrap() - b.unwrap()).abs() < 1e-5)
        };
        let (measured, sequences, trained) = run(Ranks::alone());
        let names = [metrics::LOSS, metrics::PAIR_ACCURACY, metrics::PAIR_MARGIN];
        assert!(close(measured, names.map(|name| trained.get(name))), "{measured:?} {trained:?}");
        assert_eq!(sequences, 2 * PAIRS);
        let two = on_ranks(2, run);
        assert_eq!(two[0].0, two[1].0);
        assert!(close(two[0].0, measured), "{measured:?} {two:?}");
    }
}

#[test]
fn a_batch_whose_pairs_are_separated_is_rejected() {
    let folder = small_model();
    let mut trainer = trainer(specs(1).remove(0), folder.path(), Ranks::alone());
    let mut separated = batch(1, 1, (0, 1));
    separated.header.samples[1].group = 9;
    let error = trainer.step(1, &separated).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    let expected = "micro-batch 0 has 1 samples of prompt group 0, but the loss compares 2";
    assert_eq!(cause, expected);
}
