//! Tests of the encoding of batches.

use super::{BatchHeader, RankBatch, SampleRow, SegmentRow, Sequence};

fn batch() -> RankBatch {
    let row = |group, rank| SampleRow {
        group,
        reward: 0.5,
        trainable_tokens: 1,
        rank,
        minibatch: 0,
        truncated: rank == 1,
        ended_by_limit: rank == 1,
        turn_rewards: vec![0.25, 0.25],
    };
    RankBatch {
        header: BatchHeader {
            step: 7,
            rank: 0,
            world_size: 2,
            micro_batch_minibatch: vec![0, 0],
            sequences: vec![
                Sequence {
                    sample: 1,
                    micro_batch: 0,
                    tokens: 3,
                    segments: vec![
                        SegmentRow { turn: 0, tokens: 2, version: None },
                        SegmentRow { turn: 1, tokens: 1, version: Some(6) },
                    ],
                },
                Sequence { sample: 0, micro_batch: 1, tokens: 2, segments: Vec::new() },
            ],
            samples: vec![row(0, 0), row(0, 0), row(1, 1)],
        },
        tokens_T: vec![5, 6, 7, 8, 9],
        loss_mask_T: vec![0, 0, 1, 0, 1],
        sampler_logprobs_T: vec![0.0, 0.0, -1.5, 0.0, -0.25],
        teacher_logprobs_T: Some(vec![0.0, 0.0, -2.5, 0.0, -0.5]),
    }
}

#[test]
fn a_batch_survives_its_bytes() {
    let without_teacher = RankBatch { teacher_logprobs_T: None, ..batch() };
    for batch in [batch(), without_teacher] {
        assert_eq!(RankBatch::from_bytes(&batch.to_bytes().unwrap()).unwrap(), batch);
    }
}

#[test]
fn a_layout_that_does_not_fit_its_tensors_is_refused() {
    let mut wrong = batch();
    wrong.header.sequences[1].tokens = 4;
    let error = RankBatch::from_bytes(&wrong.to_bytes().unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the batch is inconsistent: tensors of [5, 5, 5, 5] entries for 7 tokens"
    );
    let mut wrong = batch();
    wrong.header.sequences[0].segments[1].tokens = 2;
    let error = RankBatch::from_bytes(&wrong.to_bytes().unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the batch is inconsistent: segments of 4 tokens in a sequence of 3"
    );
}
