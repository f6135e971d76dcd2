//! Packing of samples that share a prompt.

use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};
use rljob_protocol::batch::RankBatch;
use rljob_protocol::prompts::Prompts;

use super::pack_prompts as pack;
use crate::pack::cost::CostModel;
use crate::pack::cost::tests::QWEN_1_5B;
use crate::pack::part::Part;
use crate::pack::{TrainSample, members};

/// A sample of a group with a prompt of `prompt` tokens and `completion` trained ones.
fn prompted(group: u32, id: i64, prompt: usize, completion: usize) -> TrainSample {
    let tokens = (0..prompt + completion)
        .map(|place| if place < prompt { i64::from(group) } else { 100 + id })
        .collect();
    let loss_mask: Vec<u8> =
        (0..prompt + completion).map(|place| u8::from(place >= prompt)).collect();
    let sampler_logprobs = loss_mask.iter().map(|&mask| -f32::from(mask)).collect();
    TrainSample { group, tokens, loss_mask, sampler_logprobs, ..TrainSample::default() }
}

/// (rank, micro-batch) of every sample.
fn places(batches: &[RankBatch], samples: usize) -> Vec<(u32, u32)> {
    let place = |sample: u32| {
        batches.iter().find_map(|batch| {
            let mine = batch.header.sequences.iter().find(|one| one.sample == sample)?;
            Some((batch.header.rank, mine.micro_batch))
        })
    };
    (0..samples as u32).map(|sample| place(sample).unwrap()).collect()
}

#[test]
fn samples_of_a_prompt_share_a_micro_batch_that_counts_it_once() {
    // Two groups of 10 + 3 · 5 tokens in micro-batches of 25.
    let samples: Vec<TrainSample> = (0..6).map(|id| prompted(id as u32 / 3, id, 10, 5)).collect();
    let of = |prompts, world| places(&pack(1, &samples, prompts, world, 1, 25).unwrap(), 6);
    let [a, b] = [(0, 0), (0, 1)];
    assert_eq!(of(Prompts::Shared, 1), [a, a, a, b, b, b]);
    assert_eq!(of(Prompts::Shared, 2), [(0, 0), (0, 0), (0, 0), (1, 0), (1, 0), (1, 0)]);
}

#[test]
fn short_prompts_are_packed_for_each_sample_on_gpus() {
    // Sequences of 2 + 68 tokens; a shared prompt would save 4 of 210.
    let samples: Vec<TrainSample> = (0..3).map(|id| prompted(0, id, 2, 68)).collect();
    let of = |prompts| places(&pack(1, &samples, prompts, 1, 1, 208).unwrap(), 3);
    let [a, b] = [(0, 0), (0, 1)];
    assert_eq!(of(Prompts::Shared), [a, a, a]);
    assert_eq!(of(Prompts::SharedIfLong), [a, b, a]);
}

#[test]
fn a_group_larger_than_a_micro_batch_has_its_prompt_in_several() {
    let samples: Vec<TrainSample> = (0..5).map(|id| prompted(0, id, 10, 5)).collect();
    let batches = pack(1, &samples, Prompts::Shared, 1, 1, 20).unwrap();
    assert_eq!(places(&batches, 5), [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2)]);
    // A sample that is longer than a micro-batch is alone.
    let batches = pack(1, &samples, Prompts::Shared, 1, 1, 14).unwrap();
    assert_eq!(places(&batches, 5), [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]);
}

#[test]
fn a_group_is_divided_where_ranks_would_wait_for_it() {
    // 4 + 4 · 20 tokens on one rank, or 4 + 2 · 20 on each.
    let samples: Vec<TrainSample> = (0..4).map(|id| prompted(0, id, 4, 20)).collect();
    let batches = pack(1, &samples, Prompts::Shared, 2, 1, 1000).unwrap();
    assert_eq!(places(&batches, 4), [(1, 0), (1, 0), (0, 0), (0, 0)]);
}

/// Groups of 1 to 6 samples with prompts of 1 to 20 tokens and completions of 0 to 20.
fn prompted_steps() -> impl Strategy<Value = Vec<TrainSample>> {
    let group = (1_usize..=20, proptest::collection::vec(0_usize..=20, 1..=6));
    proptest::collection::vec(group, 1..8).prop_map(|groups| {
        let samples = (0..).zip(groups).flat_map(|(group, (prompt, completions))| {
            completions.into_iter().map(move |completion| (group, prompt, completion))
        });
        (0..)
            .zip(samples)
            .map(|(id, (group, prompt, completion))| prompted(group, id, prompt, completion))
            .collect()
    })
}

/// Tokens that a rank computes in each micro-batch, and its number of sequences.
fn computed(batch: &RankBatch, samples: &[TrainSample]) -> Vec<(usize, usize)> {
    let count = |micro_batch: usize| {
        let mine =
            batch.header.sequences.iter().filter(|one| one.micro_batch as usize == micro_batch);
        let mine: Vec<&TrainSample> = mine.map(|one| &samples[one.sample as usize]).collect();
        let tokens = mine.chunk_by(|one, next| one.group == next.group).map(|group| {
            let parts = group.iter().map(|one| (&one.tokens[..], &one.loss_mask[..]));
            let repeated = (group.len() - 1) * Prompts::Shared.shared_tokens(parts);
            group.iter().map(|one| one.tokens.len()).sum::<usize>() - repeated
        });
        (tokens.sum(), mine.len())
    };
    (0..batch.header.micro_batch_minibatch.len()).map(count).collect()
}

proptest! {
    #[test]
    fn shared_prompts_are_packed_within_the_limits_and_balanced(
        samples in prompted_steps(),
        world in 1_u32..5,
        max_tokens in 1_u32..80,
    ) {
        let batches = pack(1, &samples, Prompts::Shared, world, 1, max_tokens).unwrap();
        let mut totals = Vec::new();
        let mut seen = 0;
        for batch in &batches {
            let fill = computed(batch, &samples);
            let fits = |&(tokens, count): &(usize, usize)| {
                tokens <= max_tokens as usize || count == 1
            };
            prop_assert!(fill.iter().all(fits), "{:?}", fill);
            seen += batch.header.sequences.len();
            totals.push(cost(batch, &samples));
        }
        prop_assert_eq!(seen, samples.len());
        let whole = |sample: &TrainSample| {
            let trained = sample.loss_mask.iter().map(|&mask| u64::from(mask)).sum();
            CostModel::new(&QWEN_1_5B).load(sample.tokens.len() as u64, trained).cost
        };
        let largest = samples.iter().map(whole).max().unwrap_or(0);
        let difference = totals.iter().max().unwrap() - totals.iter().min().unwrap();
        prop_assert!(difference <= largest, "{:?}", totals);
    }
}

/// Operations of a rank if its samples are in one micro-batch.
fn cost(batch: &RankBatch, samples: &[TrainSample]) -> u64 {
    let mut mine: Vec<usize> =
        batch.header.sequences.iter().map(|one| one.sample as usize).collect();
    mine.sort_unstable();
    let members = members(samples, Prompts::Shared, &CostModel::new(&QWEN_1_5B));
    Part::of(mine.into_iter().map(|sample| (sample, members[sample]))).load.cost
}
