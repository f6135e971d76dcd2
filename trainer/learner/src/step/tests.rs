//! Training steps on one and two ranks: golden bits in `bits`, calls of the plan in `calls`,
//! comparison with PyTorch in `peer`, PPO in `ppo` and `value_head`, adapters in `lora`, pairs in
//! `pairs`, checkpoints in `resume`, custom objectives in `custom`, shared prompts in `prompts`,
//! entropies and epochs in `entropy`, replicas of pods in `hybrid`.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

mod bits;
mod calls;
mod custom;
mod entropy;
mod hybrid;
mod lora;
mod pairs;
mod peer;
mod ppo;
mod prompts;
mod resume;
mod value_head;

use std::path::Path;
use std::rc::Rc;

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Sharding;
use rljob_crds::dataflow::LearnerCall;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_protocol::metrics::{self, StepMetrics};
use serde_json::{Value, json};
use tch::Tensor;

use crate::mesh::{GroupSize, Mesh};
use crate::model::{Model, ModelConfig};
use crate::ranks::Ranks;
use crate::startup::first_trainer;
use crate::trainer::Trainer;

const VOCABULARY: u32 = 97;
const STEPS: u32 = 20;

/// A sample before it is assigned to a rank.
struct Sample {
    tokens: Vec<i64>,
    mask: Vec<u8>,
    row: SampleRow,
}

/// Samples of different lengths whose tokens follow a learnable rule; two prompt groups of three,
/// one per minibatch. Token 0 is not used: it is tiny-llama's padding token, whose embedding
/// transformers does not train.
fn samples(step: u32, minibatches: u32, world_size: u32) -> Vec<Sample> {
    let sample = |index: u32| {
        let length = 5 + (index * 7 + step) % 9;
        let tokens: Vec<i64> = (0..length)
            .map(|row| i64::from(1 + (step * 11 + index * 5 + row * row * 3) % (VOCABULARY - 1)))
            .collect();
        let mask: Vec<u8> = (0..length).map(|row| u8::from(row >= 2)).collect();
        let (group, reward) = (index / 3, f64::from((index + step) % 2));
        Sample {
            row: SampleRow {
                group,
                reward,
                trainable_tokens: length - 2,
                rank: index % world_size,
                minibatch: group % minibatches,
                truncated: index == 4,
                ended_by_limit: index == 4,
                turn_rewards: Vec::new(),
            },
            tokens,
            mask,
        }
    };
    (0..6).map(sample).collect()
}

/// A rank's part of a batch: two micro-batches per minibatch, of which the second is empty on rank
/// 1.
fn batch(step: u32, minibatches: u32, rank: u32, world_size: u32) -> RankBatch {
    let samples = samples(step, minibatches, world_size);
    let mut mine: Vec<(u32, usize)> = Vec::new();
    for (index, sample) in samples.iter().enumerate().filter(|(_, sample)| sample.row.rank == rank)
    {
        let second = u32::from(rank == 0 && index % 4 == 0);
        mine.push((sample.row.minibatch * 2 + second, index));
    }
    mine.sort_unstable();
    let sequence = |&(micro_batch, index): &(u32, usize)| Sequence {
        sample: index as u32,
        micro_batch,
        tokens: samples[index].tokens.len() as u32,
        segments: Vec::new(),
    };
    let tokens_T: Vec<i64> =
        mine.iter().flat_map(|&(_, index)| samples[index].tokens.clone()).collect();
    let loss_mask_T: Vec<u8> =
        mine.iter().flat_map(|&(_, index)| samples[index].mask.clone()).collect();
    RankBatch {
        sampler_logprobs_T: loss_mask_T
            .iter()
            .map(|&mask| if mask == 1 { -4.5 } else { 0.0 })
            .collect(),
        teacher_logprobs_T: None,
        header: BatchHeader {
            step,
            rank,
            world_size,
            micro_batch_minibatch: (0..minibatches).flat_map(|minibatch| [minibatch; 2]).collect(),
            sequences: mine.iter().map(sequence).collect(),
            samples: samples.iter().map(|sample| sample.row.clone()).collect(),
        },
        tokens_T,
        loss_mask_T,
    }
}

fn spec(algorithm: &Value, weights: &str, minibatches: u32) -> RLJobSpec {
    serde_json::from_value(json!({
        "model": {"path": "/model", "weights": weights},
        "storage": {"hostPath": {"path": "/runs"}},
        "dataset": {"train": {"path": "/train.jsonl", "prompt": "{{q}}", "answer": "a"}},
        "algorithm": algorithm,
        "rollout": {"temperature": 0.7},
        "optimizer": {"learningRate": 1e-3},
        "training": {"steps": STEPS, "minibatches": minibatches},
    }))
    .unwrap()
}

/// A model folder without weights.
fn small_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 64,
        "tie_word_embeddings": true, "eos_token_id": 2,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn trainer(spec: RLJobSpec, folder: &Path, ranks: Rc<Ranks>) -> Trainer {
    first_trainer(spec, Model::new(ModelConfig::from_folder(folder).unwrap()), ranks, folder)
        .unwrap()
}

/// Trains steps and returns their metrics without durations.
fn train(
    trainer: &mut Trainer,
    steps: std::ops::RangeInclusive<u32>,
    minibatches: u32,
) -> Vec<StepMetrics> {
    let (rank, world_size) = (trainer.ranks.rank(), trainer.ranks.world_size());
    let mut step = |step| {
        let mut report = trainer.step(step, &batch(step, minibatches, rank, world_size)).unwrap();
        without_durations(&mut report);
        report
    };
    steps.map(&mut step).collect()
}

/// Removes durations, which differ between runs.
fn without_durations(report: &mut StepMetrics) {
    for name in
        LearnerCall::ALL.map(LearnerCall::seconds).into_iter().chain([metrics::TRAIN_SECONDS])
    {
        report.scalars.set_option(name, None);
    }
}

fn weights(trainer: &Trainer) -> Vec<Vec<u32>> {
    let bits = |tensor: &Tensor| {
        Vec::<f32>::try_from(tensor).unwrap().into_iter().map(f32::to_bits).collect()
    };
    trainer.models.policy.parameters.shards().iter().map(|shard| bits(&shard.master)).collect()
}

/// Runs `act` on every rank of a process group, each on a thread; returns the results by rank.
fn on_ranks<T: Send>(world_size: u32, act: impl Fn(Rc<Ranks>) -> T + Sync) -> Vec<T> {
    on_mesh(GroupSize::one_pod(world_size), Sharding::Full, act)
}

/// As [`on_ranks`], with the mesh of a sharding.
fn on_mesh<T: Send>(
    size: GroupSize,
    sharding: Sharding,
    act: impl Fn(Rc<Ranks>) -> T + Sync,
) -> Vec<T> {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let rank = |rank| {
        let mesh = Mesh::new(rank, size, sharding);
        act(Ranks::join(("127.0.0.1", port), "127.0.0.1", mesh, tch::Device::Cpu, 0).unwrap())
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..size.world_size).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Asserts that two ranks have the metrics of one, equal ones, and repeat bit for bit. `run`
/// returns the metrics of its steps, and states that must repeat.
fn assert_ranks_agree<T>(run: impl Fn(Rc<Ranks>) -> (Vec<StepMetrics>, T) + Sync)
where
    T: Send + PartialEq + std::fmt::Debug,
{
    let alone = run(Ranks::alone());
    let two = on_ranks(2, &run);
    assert_eq!(two[0].0, two[1].0);
    assert_close(&alone.0, &two[0].0);
    assert_eq!(two, on_ranks(2, &run));
}

/// Trains `steps` on two ranks; returns metrics and weights of both.
fn two_ranks(
    folder: &Path,
    algorithm: &Value,
    steps: u32,
    minibatches: u32,
) -> Vec<(Vec<StepMetrics>, Vec<Vec<u32>>)> {
    on_ranks(2, |ranks| {
        let mut trainer = trainer(spec(algorithm, "Random", minibatches), folder, ranks);
        (train(&mut trainer, 1..=steps, minibatches), weights(&trainer))
    })
}

/// Counts, which are compared exactly.
const COUNTS: [&str; 3] = [metrics::TOKENS, metrics::TRAINABLE_TOKENS, metrics::SKIPPED];

/// Metrics of a step that are computed from losses.
fn numbers(step: &StepMetrics) -> Vec<f64> {
    let is_count = |name: &str| COUNTS.contains(&name) || name == metrics::LEARNING_RATE;
    step.scalars.iter().filter(|(name, _)| !is_count(name)).map(|(_, value)| value).collect()
}

/// Asserts that metrics are equal except for rounding in the order of sums over ranks.
fn assert_close(one: &[StepMetrics], two: &[StepMetrics]) {
    assert_eq!(one.len(), two.len());
    for (one, two) in one.iter().zip(two) {
        assert_eq!(numbers(one).len(), numbers(two).len());
        for (a, b) in numbers(one).into_iter().zip(numbers(two)) {
            assert!((a - b).abs() <= 1e-6 + 1e-5 * a.abs(), "{one:?} is not {two:?}");
        }
        assert_eq!(COUNTS.map(|name| one.get(name)), COUNTS.map(|name| two.get(name)));
    }
}

/// Settings of `grpo` that together cover every option.
fn algorithms() -> [Value; 3] {
    [
        json!({"grpo": {}}),
        json!({"grpo": {
            "cClip": 1.01, "lossAggregation": "Sequence", "klCoefficient": 0.1,
            "klEstimator": "K3", "klTerm": "Loss", "overlongPenalty": {"tokens": 1020},
            "behaviorWeight": {"level": "Sequence", "action": "Clamp", "upper": 1.2, "lower": 0.9},
        }}),
        json!({"grpo": {
            "lossAggregation": "Constant", "klCoefficient": 0.1,
            "behaviorWeight": {"upper": 1.05, "lower": 0.3},
            "rewardNormalization": {"scale": "None", "leaveOneOut": true},
            "advantageNormalization": {"mean": "Batch", "scaleLevel": "Batch"},
        }}),
    ]
}

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
    let weights_of = |layers| {
        let model =
            Model::new(ModelConfig::from_folder(folder.path()).unwrap()).recomputing(layers);
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
    let kept = weights_of(0);
    for layers in [1, 2] {
        assert!(weights_of(layers).allclose(&kept, 1e-5, 1e-6, false), "{layers}");
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
