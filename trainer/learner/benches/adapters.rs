//! Cost of training adapters instead of all weights: time of a step, and memory of weights,
//! gradients and moments, in alternating rounds. Prints `bench NAME RATIO AIM holds|short`; speed
//! is not asserted.
//!
//! The model has the width of SmolLM2-135M, 6 layers and a vocabulary of 16,384, so that layers and
//! head have about the shares of the whole model. `OMP_NUM_THREADS` sets the threads.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::cell::RefCell;
use std::path::Path;
use std::time::Instant;

use rljob_learner::fsdp::TrainedParameters;
use rljob_learner::model::{Model, ModelConfig};
use rljob_learner::ranks::Ranks;
use rljob_learner::startup::first_trainer;
use rljob_learner::trainer::Trainer;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_tests::bench::{Aim, in_turn, row};
use serde_json::{Value, json};

/// Measured rounds, after one for warm-up.
const ROUNDS: usize = 5;
const VOCABULARY: u32 = 16_384;
const SAMPLES: u32 = 8;
const TOKENS: u32 = 256;

fn trainer(folder: &Path, lora: &Value) -> Trainer {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 6,
        "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 100_000.0, "max_position_embeddings": 8192,
        "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let spec = json!({
        "model": {"path": folder, "weights": "Random"},
        "storage": {"hostPath": {"path": "/unused"}},
        "dataset": {"train": {"path": "/unused.jsonl", "prompt": "{{q}}", "completion": "{{a}}"}},
        "algorithm": {"sft": {}},
        "lora": lora,
        "optimizer": {"learningRate": 1e-5},
        "training": {"steps": 1000},
    });
    let model = Model::new(ModelConfig::from_folder(folder).unwrap());
    first_trainer(serde_json::from_value(spec).unwrap(), model, Ranks::alone(), folder).unwrap()
}

/// Samples in `micro_batches` of equal size.
fn batch(step: u32, micro_batches: u32) -> RankBatch {
    let token = |place: u32| i64::from((place * 7919 + step) % VOCABULARY);
    let mask: Vec<u8> = (0..SAMPLES * TOKENS).map(|place| u8::from(place % TOKENS > 0)).collect();
    let sequence = |sample| Sequence {
        sample,
        micro_batch: sample * micro_batches / SAMPLES,
        tokens: TOKENS,
        segments: Vec::new(),
    };
    let row = |group| SampleRow {
        group,
        reward: 0.0,
        trainable_tokens: TOKENS - 1,
        rank: 0,
        minibatch: 0,
        truncated: false,
        turn_rewards: Vec::new(),
    };
    RankBatch {
        header: BatchHeader {
            step,
            rank: 0,
            world_size: 1,
            micro_batch_minibatch: vec![0; micro_batches as usize],
            sequences: (0..SAMPLES).map(sequence).collect(),
            samples: (0..SAMPLES).map(row).collect(),
        },
        tokens_T: (0..SAMPLES * TOKENS).map(token).collect(),
        sampler_logprobs_T: vec![0.0; mask.len()],
        loss_mask_T: mask,
    }
}

/// Bytes of weights, gradients and moments: 16 for each trained element, 4 for each of a base.
fn bytes(trainer: &Trainer) -> f64 {
    let policy = &trainer.models.policy;
    let trained: i64 = policy.parameters.shards().iter().map(|shard| shard.numel).sum();
    let base = match policy.parameters {
        TrainedParameters::All(_) => 0,
        TrainedParameters::Adapters(_) => policy.model.layout().numel(),
    };
    (16 * trained + 4 * base) as f64
}

fn main() {
    rljob_collective::keep_freed_memory();
    let folder = tempfile::tempdir().unwrap();
    let of = |lora: &Value| RefCell::new((trainer(folder.path(), lora), 0));
    let (adapters, all) = (of(&json!({"rank": 16})), of(&Value::Null));
    for (name, micro_batches) in [("adapters-step", 1), ("adapters-step-micro-batches", 8)] {
        let step = |trainer: &RefCell<(Trainer, u32)>| {
            let (trainer, step) = &mut *trainer.borrow_mut();
            *step += 1;
            let started = Instant::now();
            trainer.step(*step, &batch(*step, micro_batches)).unwrap();
            started.elapsed().as_secs_f64()
        };
        let (ours, theirs) = in_turn(ROUNDS, || step(&adapters), || step(&all));
        let tokens = SAMPLES * TOKENS / micro_batches;
        let figures = format!(
            "a step in micro-batches of {tokens} tokens takes {ours:.2} s, of all weights \
             {theirs:.2} s"
        );
        row(name, &figures, theirs / ours, Aim::AtLeast(1.0));
    }
    let [ours, theirs] = [&adapters, &all].map(|trainer| bytes(&trainer.borrow().0));
    let figures = format!(
        "weights, gradients and moments take {:.0} MB, of all weights {:.0} MB",
        ours / 1e6,
        theirs / 1e6
    );
    row("adapters-memory", &figures, theirs / ours, Aim::AtLeast(3.0));
}
