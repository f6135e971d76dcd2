//! Tests of micro-batches.

use super::{check_place, micro_batches};
use crate::objective::StepAdvantages;
use crate::objective::advantages::SampleAdvantage;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_protocol::prompts::Prompts;
use tch::Tensor;

fn batch() -> RankBatch {
    let row = |trainable_tokens, minibatch| SampleRow {
        group: 0,
        reward: 0.0,
        trainable_tokens,
        rank: 1,
        minibatch,
        truncated: false,
        ended_by_limit: false,
        turn_rewards: Vec::new(),
    };
    let sequence = |sample, micro_batch, tokens| Sequence {
        sample,
        micro_batch,
        tokens,
        segments: Vec::new(),
    };
    RankBatch {
        header: BatchHeader {
            step: 4,
            rank: 1,
            world_size: 2,
            micro_batch_minibatch: vec![0, 0, 1],
            sequences: vec![sequence(1, 0, 3), sequence(0, 0, 2), sequence(2, 2, 4)],
            samples: vec![row(1, 0), row(2, 0), row(2, 1)],
        },
        tokens_T: (1..10).collect(),
        loss_mask_T: vec![0, 1, 1, 0, 1, 0, 0, 1, 1],
        sampler_logprobs_T: (0..9).map(|row| -0.5 * row as f32).collect(),
        teacher_logprobs_T: None,
    }
}

/// Advantages 0.25, −1, 2; weights 1, 2, 3; a prompt group per sample.
fn advantages(trainable: [u32; 3]) -> StepAdvantages {
    let sample = |index: usize| SampleAdvantage {
        group: index,
        advantage: [0.25, -1.0, 2.0][index],
        reward_scale: 1.0,
        weight: (index + 1) as f64,
        trainable_tokens: trainable[index],
        truncated: false,
    };
    StepAdvantages { samples: (0..3).map(sample).collect(), groups: 3 }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

#[test]
fn micro_batches_have_tokens_advantages_and_sampler_logprobs() {
    let cut = micro_batches(&batch(), &advantages([1, 2, 2]), Prompts::Shared, 16).unwrap();
    let view = |index: usize| {
        (
            cut[index].minibatch,
            floats(&cut[index].streams.advantages_N),
            floats(&cut[index].streams.sampler_logprobs_N),
        )
    };
    assert_eq!(view(0), (0, vec![-1.0, -1.0, 0.25], vec![-0.5, -1.0, -2.0]));
    assert_eq!(view(1), (0, vec![], vec![]));
    assert_eq!(view(2), (1, vec![2.0, 2.0], vec![-3.5, -4.0]));
    assert_eq!(
        (floats(&cut[0].streams.weights_N), &cut[0].streams.groups),
        (vec![2.0, 2.0, 1.0], &vec![1, 0])
    );
}

#[test]
fn log_probabilities_of_a_served_teacher_take_the_place_of_the_reference() {
    let teacher = (0..9).map(|row| -0.25 * row as f32).collect();
    let with_teacher = RankBatch { teacher_logprobs_T: Some(teacher), ..batch() };
    let of = |batch: &RankBatch| {
        let cut = micro_batches(batch, &advantages([1, 2, 2]), Prompts::Shared, 16).unwrap();
        cut.iter()
            .map(|one| one.streams.reference_logprobs_N.as_ref().map(floats))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(&batch()), [None, None, None]);
    let expected = [vec![-0.25, -0.5, -1.0], vec![], vec![-1.75, -2.0]];
    assert_eq!(of(&with_teacher), expected.map(Some));
}

#[test]
fn an_excluded_sample_has_no_trained_tokens() {
    let cut = micro_batches(&batch(), &advantages([1, 0, 2]), Prompts::Shared, 16).unwrap();
    assert_eq!((floats(&cut[0].streams.advantages_N), cut[0].packed.num_tokens()), (vec![0.25], 5));
}

#[test]
fn samples_of_a_group_in_a_micro_batch_share_their_prompt() {
    let mut together = batch();
    // Two samples of group 0 begin with 4; the third is in another micro-batch.
    together.tokens_T[0] = 4;
    let mut apart = together.clone();
    apart.header.samples[0].group = 1;
    let cut = |batch: &RankBatch| {
        let cut = micro_batches(batch, &advantages([1, 2, 2]), Prompts::Shared, 16).unwrap();
        let streams = &cut[0].streams;
        let tensors = [&streams.advantages_N, &streams.sampler_logprobs_N, &streams.weights_N];
        let tokens: Vec<i64> = cut.iter().map(|one| one.packed.num_tokens()).collect();
        (tokens, tensors.map(floats))
    };
    let ((shared, streams), (repeated, same)) = (cut(&together), cut(&apart));
    assert_eq!((shared, repeated), (vec![4, 0, 4], vec![5, 0, 4]));
    assert_eq!(streams, same);
}

#[test]
fn a_mask_that_contradicts_the_table_is_rejected() {
    let mut wrong = batch();
    wrong.header.samples[2].trainable_tokens = 3;
    let error = micro_batches(&wrong, &advantages([1, 2, 2]), Prompts::Shared, 16).unwrap_err();
    assert_eq!(error.to_string(), "sample 2 has 2 trained tokens, but the step's table says 3");
}

#[test]
fn a_batch_of_another_step_is_rejected() {
    let error = check_place(&batch().header, 5, 1, 2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the batch is of step 4 for rank 1 of 2, expected step 5 for rank 1 of 2"
    );
}
