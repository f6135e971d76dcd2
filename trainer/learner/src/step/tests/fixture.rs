//! Batches, jobs and models of the tests of steps; runs on several ranks and their comparison.

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

pub const VOCABULARY: u32 = 97;
pub const STEPS: u32 = 20;

/// A sample before it is assigned to a rank.
pub struct Sample {
    pub tokens: Vec<i64>,
    pub mask: Vec<u8>,
    pub row: SampleRow,
}

/// Samples of different lengths whose tokens follow a learnable rule; two prompt groups of three,
/// one per minibatch. Token 0 is not used: it is tiny-llama's padding token, whose embedding
/// transformers does not train.
pub fn samples(step: u32, minibatches: u32, world_size: u32) -> Vec<Sample> {
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
pub fn batch(step: u32, minibatches: u32, rank: u32, world_size: u32) -> RankBatch {
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

pub fn spec(algorithm: &Value, weights: &str, minibatches: u32) -> RLJobSpec {
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
pub fn small_model() -> tempfile::TempDir {
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

pub fn trainer(spec: RLJobSpec, folder: &Path, ranks: Rc<Ranks>) -> Trainer {
    first_trainer(spec, Model::new(ModelConfig::from_folder(folder).unwrap()), ranks, folder)
        .unwrap()
}

/// Trains steps and returns their metrics without durations.
pub fn train(
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
pub fn without_durations(report: &mut StepMetrics) {
    for name in
        LearnerCall::ALL.map(LearnerCall::seconds).into_iter().chain([metrics::TRAIN_SECONDS])
    {
        report.scalars.set_option(name, None);
    }
}

pub fn weights(trainer: &Trainer) -> Vec<Vec<u32>> {
    let bits = |tensor: &Tensor| {
        Vec::<f32>::try_from(tensor).unwrap().into_iter().map(f32::to_bits).collect()
    };
    trainer.models.policy.parameters.shards().iter().map(|shard| bits(&shard.master)).collect()
}

/// Runs `act` on every rank of a process group, each on a thread; returns the results by rank.
pub fn on_ranks<T: Send>(world_size: u32, act: impl Fn(Rc<Ranks>) -> T + Sync) -> Vec<T> {
    on_mesh(GroupSize::one_pod(world_size), Sharding::Full, act)
}

/// As [`on_ranks`], with the mesh of a sharding.
pub fn on_mesh<T: Send>(
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
pub fn assert_ranks_agree<T>(run: impl Fn(Rc<Ranks>) -> (Vec<StepMetrics>, T) + Sync)
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
pub fn two_ranks(
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
pub const COUNTS: [&str; 3] = [metrics::TOKENS, metrics::TRAINABLE_TOKENS, metrics::SKIPPED];

/// Metrics of a step that are computed from losses.
pub fn numbers(step: &StepMetrics) -> Vec<f64> {
    let is_count = |name: &str| COUNTS.contains(&name) || name == metrics::LEARNING_RATE;
    step.scalars.iter().filter(|(name, _)| !is_count(name)).map(|(_, value)| value).collect()
}

/// Asserts that metrics are equal except for rounding in the order of sums over ranks.
pub fn assert_close(one: &[StepMetrics], two: &[StepMetrics]) {
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
pub fn algorithms() -> [Value; 3] {
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
