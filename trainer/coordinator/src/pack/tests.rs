//! Tests of batch packing; of shared prompts in `prompts`.

mod prompts;

use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_protocol::prompts::Prompts;

use crate::pack::cost::CostModel;
use crate::pack::cost::tests::QWEN_1_5B;
use crate::pack::{PackError, TrainSample};

/// Packs for a model of 1.5 billion parameters.
fn pack(
    step: u32,
    samples: &[TrainSample],
    world_size: u32,
    minibatches: u32,
    max_tokens: u32,
) -> Result<Vec<RankBatch>, PackError> {
    pack_prompts(step, samples, Prompts::Shared, world_size, minibatches, max_tokens)
}

/// As [`pack`], for learners that share prompts in this way.
fn pack_prompts(
    step: u32,
    samples: &[TrainSample],
    prompts: Prompts,
    world_size: u32,
    minibatches: u32,
    max_tokens: u32,
) -> Result<Vec<RankBatch>, PackError> {
    let costs = CostModel::new(&QWEN_1_5B);
    crate::pack::pack(step, samples, prompts, world_size, minibatches, max_tokens, &costs)
}

/// A sample of `tokens` tokens `id`; the mask is 0 for the first token.
fn sample(group: u32, id: i64, tokens: usize) -> TrainSample {
    let loss_mask: Vec<u8> = (0..tokens).map(|index| u8::from(index > 0)).collect();
    let sampler_logprobs = loss_mask.iter().map(|&mask| -f32::from(mask)).collect();
    TrainSample {
        group,
        reward: id as f64,
        tokens: vec![id; tokens],
        loss_mask,
        sampler_logprobs,
        truncated: id % 2 == 1,
        ..TrainSample::default()
    }
}

#[test]
fn a_small_step_matches_the_expected_batches() {
    // Minibatch 0 is group 7 (lengths 3, 5), minibatch 1 is group 8 (lengths 2, 4, 2). Longest
    // first, rank 0 gets 5 and rank 1 gets 3; then rank 0 gets 4 and rank 1 gets 2 and 2.
    let samples =
        [sample(7, 10, 3), sample(7, 11, 5), sample(8, 12, 2), sample(8, 13, 4), sample(8, 14, 2)];
    let row = |group, id: u32, tokens: u32, rank, minibatch| SampleRow {
        group,
        reward: f64::from(id),
        trainable_tokens: tokens - 1,
        rank,
        minibatch,
        truncated: id % 2 == 1,
        ended_by_limit: false,
        turn_rewards: Vec::new(),
    };
    let table = vec![
        row(7, 10, 3, 1, 0),
        row(7, 11, 5, 0, 0),
        row(8, 12, 2, 1, 1),
        row(8, 13, 4, 0, 1),
        row(8, 14, 2, 1, 1),
    ];
    let sequence = |sample, micro_batch, tokens| Sequence {
        sample,
        micro_batch,
        tokens,
        segments: Vec::new(),
    };
    let header = |rank, sequences| BatchHeader {
        step: 4,
        rank,
        world_size: 2,
        micro_batch_minibatch: vec![0, 1, 1],
        sequences,
        samples: table.clone(),
    };
    let batches = pack(4, &samples, 2, 2, 3).unwrap();
    assert_eq!(
        batches,
        [
            RankBatch {
                header: header(0, vec![sequence(1, 0, 5), sequence(3, 1, 4)]),
                tokens_T: vec![11, 11, 11, 11, 11, 13, 13, 13, 13],
                loss_mask_T: vec![0, 1, 1, 1, 1, 0, 1, 1, 1],
                sampler_logprobs_T: vec![0.0, -1.0, -1.0, -1.0, -1.0, 0.0, -1.0, -1.0, -1.0],
                teacher_logprobs_T: None,
            },
            RankBatch {
                header: header(1, vec![sequence(0, 0, 3), sequence(2, 1, 2), sequence(4, 2, 2)]),
                tokens_T: vec![10, 10, 10, 12, 12, 14, 14],
                loss_mask_T: vec![0, 1, 1, 0, 1, 0, 1],
                sampler_logprobs_T: vec![0.0, -1.0, -1.0, 0.0, -1.0, 0.0, -1.0],
                teacher_logprobs_T: None,
            },
        ]
    );
}

#[test]
fn unpackable_batches_are_errors() {
    let good = [sample(0, 1, 2), sample(1, 2, 2)];
    let error = |samples: &[TrainSample], world, minibatches, tokens| {
        pack(3, samples, world, minibatches, tokens).unwrap_err().to_string()
    };
    assert_eq!(error(&good, 0, 1, 1), "world size must be at least 1");
    assert_eq!(error(&good, 1, 0, 1), "minibatches must be at least 1");
    assert_eq!(error(&good, 1, 1, 0), "tokens per micro-batch must be at least 1");
    assert_eq!(pack(3, &[], 1, 1, 1), Err(PackError::Empty { step: 3 }));
    let split = [sample(0, 1, 2), sample(1, 2, 2), sample(0, 3, 2)];
    assert_eq!(
        error(&split, 1, 1, 1),
        "sample 2 of step 3 is not adjacent to the other samples of group 0"
    );
    let malformed = TrainSample { loss_mask: vec![0], ..sample(0, 1, 2) };
    assert_eq!(
        error(&[malformed], 1, 1, 1),
        "sample 0 of step 3 has 2 tokens, 1 mask entries and 2 log-probabilities"
    );
    assert_eq!(
        error(&[sample(0, 1, 0)], 1, 1, 1),
        "sample 0 of step 3 has 0 tokens, 0 mask entries and 0 log-probabilities"
    );
}

/// Groups of 1 to 4 samples of 1 to 20 tokens; token ids are the sample's index.
fn steps() -> impl Strategy<Value = Vec<TrainSample>> {
    proptest::collection::vec(proptest::collection::vec(1_usize..=20, 1..=4), 1..12).prop_map(
        |groups| {
            let lengths = (0..).zip(groups).flat_map(|(group, lengths)| {
                lengths.into_iter().map(move |length| (group, length))
            });
            (0..).zip(lengths).map(|(id, (group, length))| sample(group, id, length)).collect()
        },
    )
}

proptest! {
    #[test]
    fn every_sample_is_packed_once_within_the_limits(
        samples in steps(),
        world in 1_u32..5,
        minibatches in 1_u32..4,
        max_tokens in 1_u32..40,
    ) {
        let groups = samples.last().map_or(0, |sample| sample.group + 1);
        let minibatches = minibatches.min(groups);
        let batches = pack(1, &samples, world, minibatches, max_tokens).unwrap();
        prop_assert_eq!(&batches, &pack(1, &samples, world, minibatches, max_tokens).unwrap());
        prop_assert_eq!(batches.len(), world as usize);
        let mut seen = vec![0; samples.len()];
        for (rank, batch) in (0_u32..).zip(&batches) {
            let header = &batch.header;
            let first = &batches[0].header;
            prop_assert_eq!(header.rank, rank);
            prop_assert_eq!(&header.micro_batch_minibatch, &first.micro_batch_minibatch);
            prop_assert_eq!(&header.samples, &first.samples);
            let decoded = RankBatch::from_bytes(&batch.to_bytes().unwrap()).unwrap();
            prop_assert_eq!(&decoded, batch);
            let mut fill = vec![(0_u32, 0_u32); header.micro_batch_minibatch.len()];
            let mut at = 0;
            for sequence in &header.sequences {
                let (index, end) = (sequence.sample as usize, at + sequence.tokens as usize);
                seen[index] += 1;
                prop_assert_eq!(&batch.tokens_T[at..end], &samples[index].tokens[..]);
                prop_assert_eq!(&batch.loss_mask_T[at..end], &samples[index].loss_mask[..]);
                prop_assert_eq!(
                    &batch.sampler_logprobs_T[at..end],
                    &samples[index].sampler_logprobs[..]
                );
                let row = &header.samples[index];
                let minibatch = header.micro_batch_minibatch[sequence.micro_batch as usize];
                prop_assert_eq!((row.rank, row.minibatch), (rank, minibatch));
                let (tokens, count) = &mut fill[sequence.micro_batch as usize];
                (*tokens, *count) = (*tokens + sequence.tokens, *count + 1);
                at = end;
            }
            let fits = |&(tokens, count): &(u32, u32)| tokens <= max_tokens || count == 1;
            prop_assert!(fill.iter().all(fits), "{:?}", fill);
        }
        prop_assert!(seen.iter().all(|&times| times == 1), "{:?}", seen);
    }

    #[test]
    fn minibatches_have_whole_groups_in_order_and_nearly_equal_numbers(
        samples in steps(),
        minibatches in 1_u32..4,
    ) {
        let groups = samples.last().map_or(0, |sample| sample.group + 1);
        let minibatches = minibatches.min(groups);
        let table =
            pack(1, &samples, 2, minibatches, 16).unwrap().swap_remove(0).header.samples;
        prop_assert!(table.is_sorted_by_key(|row| row.minibatch));
        let mut of_group: Vec<(u32, u32)> =
            table.iter().map(|row| (row.group, row.minibatch)).collect();
        of_group.dedup();
        prop_assert_eq!(of_group.len(), groups as usize);
        for minibatch in 0..minibatches {
            let size = of_group.iter().filter(|(_, of)| *of == minibatch).count() as u32;
            prop_assert!(size == groups / minibatches || size == groups.div_ceil(minibatches));
        }
    }

    #[test]
    fn costs_of_ranks_differ_by_at_most_the_most_expensive_sample(
        samples in steps(),
        world in 1_u32..5,
    ) {
        let batches = pack(1, &samples, world, 1, 16).unwrap();
        let costs = CostModel::new(&QWEN_1_5B);
        let cost = |tokens: u32| costs.load(u64::from(tokens), u64::from(tokens) - 1).cost;
        let of_rank = |batch: &RankBatch| -> u64 {
            batch.header.sequences.iter().map(|sequence| cost(sequence.tokens)).sum()
        };
        let ranks: Vec<u64> = batches.iter().map(of_rank).collect();
        let longest = samples.iter().map(|sample| sample.tokens.len()).max().unwrap_or(0);
        let difference = ranks.iter().max().unwrap() - ranks.iter().min().unwrap();
        prop_assert!(difference <= cost(longest as u32), "{:?}", ranks);
    }
}

#[test]
fn with_fewer_groups_than_minibatches_each_group_is_a_minibatch() {
    let batches = pack(3, &[sample(0, 1, 2), sample(1, 2, 2)], 1, 3, 16).unwrap();
    let minibatches: Vec<u32> =
        batches[0].header.samples.iter().map(|sample| sample.minibatch).collect();
    assert_eq!(minibatches, [0, 1]);
}
