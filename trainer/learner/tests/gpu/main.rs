//! Training on a GPU against the same steps on a CPU. Needs a GPU (`make build-cuda` builds it).

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "tests fail by panicking, or say why \
    they are skipped"
)]

mod two_gpus;

use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_learner::model::{Model, ModelConfig};
use rljob_learner::ranks::Ranks;
use rljob_learner::startup::first_trainer;
use rljob_learner::trainer::Trainer;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_protocol::metrics;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);
const VOCABULARY: i64 = 512;
const LENGTHS: [u32; 6] = [37, 200, 5, 128, 64, 300];

fn model_folder(tied: bool, qwen3: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let architecture = if qwen3 { "Qwen3ForCausalLM" } else { "Qwen2ForCausalLM" };
    let config = json!({
        "architectures": [architecture], "model_type": if qwen3 { "qwen3" } else { "qwen2" },
        "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 1024, "tie_word_embeddings": tied, "eos_token_id": 2,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn spec(algorithm: &Value, precision: &str, deterministic: bool) -> RLJobSpec {
    serde_json::from_value(json!({
        "model": {"path": "/model", "weights": "Random"},
        "storage": {"hostPath": {"path": "/runs"}},
        "dataset": {"train": {"path": "/train.jsonl", "prompt": "{{q}}", "answer": "a"}},
        "rewards": [{"name": "correct", "exactMatch": {}}],
        "algorithm": algorithm,
        "optimizer": {"learningRate": 1e-3},
        "training": {"steps": 8, "precision": precision, "deterministic": deterministic},
    }))
    .unwrap()
}

fn trainer(spec: &RLJobSpec, folder: &Path, device: Device) -> Trainer {
    let model = Model::new(ModelConfig::from_folder(folder).unwrap());
    first_trainer(spec.clone(), model, Ranks::alone_on(device), folder).unwrap()
}

/// Two micro-batches, each of a group whose sequences begin with the same prompt of `prompt`
/// tokens. The prompt and the next two tokens are not trained.
fn batch(step: u32, prompt: u32) -> RankBatch {
    let lengths = LENGTHS.map(|length| prompt + length);
    let total: u32 = lengths.iter().sum();
    let row = |index: usize, length: u32| SampleRow {
        group: index as u32 / 3,
        reward: f64::from((index as u32 + step) % 3),
        trainable_tokens: length - prompt - 2,
        rank: 0,
        minibatch: 0,
        truncated: false,
        ended_by_limit: false,
        turn_rewards: Vec::new(),
    };
    let sequence = |(sample, tokens): (u32, u32)| Sequence {
        sample,
        micro_batch: sample / 3,
        tokens,
        segments: Vec::new(),
    };
    RankBatch {
        header: BatchHeader {
            step,
            rank: 0,
            world_size: 1,
            micro_batch_minibatch: vec![0, 0],
            sequences: (0..).zip(lengths).map(sequence).collect(),
            samples: lengths.iter().enumerate().map(|(at, length)| row(at, *length)).collect(),
        },
        tokens_T: (0..).zip(lengths).flat_map(|(at, length)| tokens(at, length, prompt)).collect(),
        loss_mask_T: lengths
            .iter()
            .flat_map(|length| (0..*length).map(|at| u8::from(at > prompt + 1)))
            .collect(),
        sampler_logprobs_T: vec![-6.2; total as usize],
        teacher_logprobs_T: None,
    }
}

fn tokens(sample: i64, length: u32, prompt: u32) -> impl Iterator<Item = i64> {
    (0..i64::from(length)).map(move |at| {
        let source = if at < i64::from(prompt) { 1000 + sample / 3 } else { sample };
        (at * at + 17 * at + 131 * source) % VOCABULARY
    })
}

/// Loss and gradient norm of each step, and the weights afterwards.
fn train(mut trainer: Trainer, steps: u32, prompt: u32) -> (Vec<[f64; 2]>, Tensor) {
    let _no_gradient = tch::no_grad_guard();
    let mut step = |step| {
        let metrics = trainer.step(step, &batch(step, prompt)).unwrap();
        [metrics::LOSS, metrics::GRADIENT_NORM].map(|name| metrics.get(name).unwrap())
    };
    let curve = (1..=steps).map(&mut step).collect();
    let shards = trainer.models.policy.parameters.shards();
    let weights: Vec<_> = shards.iter().map(|shard| shard.master.to_device(Device::Cpu)).collect();
    (curve, Tensor::cat(&weights, 0))
}

/// Norm of the difference relative to that of the expected values.
fn relative(found: &Tensor, expected: &Tensor) -> f64 {
    let [difference, whole] = [&(found - expected), expected]
        .map(|tensor| tensor.to_kind(Kind::Double).norm().double_value(&[]));
    difference / whole
}

fn assert_near(found: &[[f64; 2]], expected: &[[f64; 2]], tolerance: f64) {
    let scale: f64 = expected.iter().map(|[_, norm]| norm.abs()).fold(0.0, f64::max);
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!(
            (found - expected).abs() <= tolerance * (expected.abs() + 0.1 * scale),
            "{found} is not within {tolerance} of {expected}"
        );
    }
}

#[test]
fn steps_in_fp32_are_those_of_a_cpu() {
    for (tied, qwen3) in [(true, false), (false, false), (true, true)] {
        let folder = model_folder(tied, qwen3);
        let ppo = json!({"ppo": {"valueHead": {}, "klCoefficient": 0.0}});
        for algorithm in [json!({"sft": {}}), json!({"grpo": {}}), ppo] {
            let spec = spec(&algorithm, "FP32", false);
            let (expected, weights) = train(trainer(&spec, folder.path(), Device::Cpu), 3, 0);
            let (found, on_gpu) = train(trainer(&spec, folder.path(), GPU), 3, 0);
            assert_near(&found, &expected, 1e-3);
            let difference = relative(&on_gpu, &weights);
            assert!(difference < 1e-4, "{algorithm} {tied} {qwen3}: {difference}");
        }
    }
}

#[test]
fn steps_in_bf16_are_near_those_in_fp32_on_a_cpu() {
    for (tied, qwen3) in [(true, false), (false, true)] {
        let folder = model_folder(tied, qwen3);
        let algorithm = json!({"sft": {}});
        let expected =
            train(trainer(&spec(&algorithm, "FP32", false), folder.path(), Device::Cpu), 3, 0);
        let found = train(trainer(&spec(&algorithm, "BF16", false), folder.path(), GPU), 3, 0);
        assert_near(&found.0, &expected.0, 0.02);
        let difference = relative(&found.1, &expected.1);
        assert!(difference < 0.05, "{tied} {qwen3}: {difference}");
    }
}

#[test]
fn prompts_that_a_group_shares_train_as_on_a_cpu() {
    let folder = model_folder(true, false);
    let algorithm = json!({"grpo": {}});
    let of = |precision, device, prompt| {
        train(trainer(&spec(&algorithm, precision, false), folder.path(), device), 3, prompt)
    };
    for prompt in [33, 256] {
        let expected = of("FP32", Device::Cpu, prompt);
        for (precision, tolerance, weights) in [("FP32", 1e-3, 1e-4), ("BF16", 0.03, 0.05)] {
            let found = of(precision, GPU, prompt);
            assert_near(&found.0, &expected.0, tolerance);
            let difference = relative(&found.1, &expected.1);
            assert!(difference < weights, "{precision}, prompts of {prompt}: {difference}");
        }
    }
}

#[test]
fn deterministic_steps_repeat_bit_for_bit() {
    rljob_collective::set_deterministic(true).unwrap();
    let folder = model_folder(true, false);
    let spec = spec(&json!({"grpo": {}}), "BF16", true);
    for prompt in [0, 64] {
        let first = train(trainer(&spec, folder.path(), GPU), 4, prompt);
        assert_eq!(train(trainer(&spec, folder.path(), GPU), 4, prompt), first);
    }
    rljob_collective::set_deterministic(false).unwrap();
}

#[test]
fn moments_and_weights_in_memory_of_the_host_change_no_bit() {
    rljob_collective::set_deterministic(true).unwrap();
    let folder = model_folder(true, false);
    let on_device = spec(&json!({"grpo": {}}), "BF16", true);
    let mut on_host = on_device.clone();
    on_host.optimizer.offload = true;
    let mut all_on_host = on_host.clone();
    all_on_host.optimizer.offload_weights = true;
    let [expected, moments, all] = [on_device, on_host, all_on_host]
        .map(|spec| train(trainer(&spec, folder.path(), GPU), 3, 0));
    assert_eq!(moments, expected);
    assert_eq!(all, expected);
    rljob_collective::set_deterministic(false).unwrap();
}
