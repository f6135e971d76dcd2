//! Steps over prompt groups whose samples share their prompt, which is computed once.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::rc::Rc;

use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_protocol::metrics::{self, StepMetrics};
use serde_json::{Value, json};

use super::fixture::{
    VOCABULARY, algorithms, assert_close, on_ranks, small_model, spec, trainer, weights,
    without_durations,
};
use crate::ranks::Ranks;

/// Samples in groups of four with prompts of 6 and 9 tokens.
const SAMPLES: u32 = 8;

fn prompt(group: u32) -> u32 {
    6 + 3 * group
}

fn completion(sample: u32) -> u32 {
    1 + sample * 5 % 7
}

/// A rank's part of a batch; each group is on all ranks. Micro-batch 0 has both groups, micro-batch
/// 1 the rest of group 1. Without `grouped`, each sample is a group.
fn batch(step: u32, grouped: bool, ranks: &Ranks) -> RankBatch {
    let (rank, world_size) = (ranks.rank(), ranks.world_size());
    let row = |sample: u32| SampleRow {
        group: if grouped { sample / 4 } else { sample },
        reward: f64::from((sample + step) % 2),
        trainable_tokens: completion(sample),
        rank: sample % world_size,
        minibatch: 0,
        truncated: false,
        ended_by_limit: false,
        turn_rewards: Vec::new(),
    };
    let mine = || (0..SAMPLES).filter(|sample| sample % world_size == rank);
    let places = || {
        mine().flat_map(|sample| {
            (0..prompt(sample / 4) + completion(sample)).map(move |place| (sample, place))
        })
    };
    let token = |(sample, place): (u32, u32)| {
        let (group, is_prompt) = (sample / 4, place < prompt(sample / 4));
        let seed = if is_prompt { group * 17 } else { sample * 5 + 3 };
        i64::from(1 + (step * 11 + seed + place * place * 3) % (VOCABULARY - 1))
    };
    let sequence = |sample: u32| Sequence {
        sample,
        micro_batch: u32::from(sample >= 6),
        tokens: prompt(sample / 4) + completion(sample),
        segments: Vec::new(),
    };
    let loss_mask_T: Vec<u8> =
        places().map(|(sample, place)| u8::from(place >= prompt(sample / 4))).collect();
    RankBatch {
        header: BatchHeader {
            step,
            rank,
            world_size,
            micro_batch_minibatch: vec![0, 0],
            sequences: mine().map(sequence).collect(),
            samples: (0..SAMPLES).map(row).collect(),
        },
        tokens_T: places().map(token).collect(),
        sampler_logprobs_T: loss_mask_T.iter().map(|&mask| -4.5 * f32::from(mask)).collect(),
        teacher_logprobs_T: None,
        loss_mask_T,
    }
}

/// Metrics of three steps without durations, and final weights.
fn run(algorithm: &Value, grouped: bool, ranks: &Rc<Ranks>) -> (Vec<StepMetrics>, Vec<Vec<u32>>) {
    let folder = small_model();
    let mut trainer = trainer(spec(algorithm, "Random", 1), folder.path(), Rc::clone(ranks));
    let mut step = |step| {
        let mut report = trainer.step(step, &batch(step, grouped, ranks)).unwrap();
        without_durations(&mut report);
        report
    };
    let steps = (1..=3).map(&mut step).collect();
    (steps, weights(&trainer))
}

/// Metrics without the number of computed tokens, and that number.
fn computed(steps: Vec<StepMetrics>) -> (Vec<StepMetrics>, Vec<f64>) {
    steps
        .into_iter()
        .map(|mut step| {
            let tokens = step.get(metrics::COMPUTED_TOKENS).unwrap();
            step.scalars.set(metrics::COMPUTED_TOKENS, 0.0);
            (step, tokens)
        })
        .unzip()
}

#[test]
fn shared_prompts_train_as_repeated_ones_with_fewer_tokens() {
    let of = |grouped| computed(run(&json!({"sft": {}}), grouped, &Ranks::alone()).0);
    let ((shared, fewer), (repeated, all)) = (of(true), of(false));
    assert_close(&repeated, &shared);
    let completions: u32 = (0..SAMPLES).map(completion).sum();
    let (prompts, repeated) = (6 + 9 + 9, 4 * 6 + 4 * 9);
    assert_eq!(fewer, [f64::from(completions + prompts); 3]);
    assert_eq!(all, [f64::from(completions + repeated); 3]);
}

#[test]
fn ranks_that_share_prompts_have_the_metrics_of_one_and_repeat_bit_for_bit() {
    for algorithm in algorithms() {
        let (alone, _) = computed(run(&algorithm, true, &Ranks::alone()).0);
        let two = || on_ranks(2, |ranks| run(&algorithm, true, &ranks));
        let first = two();
        assert_eq!(first, two());
        assert_eq!(first[0].0, first[1].0);
        assert_close(&alone, &computed(first[0].0.clone()).0);
    }
}
