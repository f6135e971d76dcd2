//! Speed of computing the prompt of a group's samples once: a training step and a log-probability
//! pass over the same tokens, with the samples in one prompt group and each in one alone, in
//! alternating rounds. Prints `bench NAME RATIO AIM holds|short`; speed is not asserted.
//!
//! The model has the width of SmolLM2-135M, 3 layers and a vocabulary of 4,096, so that layers and
//! head have about the shares of the whole model. `OMP_NUM_THREADS` sets the threads.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::time::Instant;

use rljob_learner::model::{Model, ModelConfig};
use rljob_learner::ranks::Ranks;
use rljob_learner::startup::first_trainer;
use rljob_learner::trainer::Trainer;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_protocol::metrics::COMPUTED_TOKENS;
use rljob_tests::bench::{Aim, in_turn, row};
use serde_json::json;

const GROUP: u32 = 8;
/// Measured rounds, after one for warm-up.
const ROUNDS: usize = 3;
const VOCABULARY: u32 = 4096;

/// A name, tokens of the prompt, and the speed-up that is aimed at.
const CASES: [(&str, u32, f64); 2] = [("prompt-128", 128, 1.3), ("prompt-256", 256, 1.6)];

/// Completions of 64 to 190 tokens.
fn completion(sample: u32) -> u32 {
    64 + sample * 18
}

fn trainer(folder: &std::path::Path) -> Trainer {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 3,
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
        "optimizer": {"learningRate": 1e-5},
        "training": {"steps": 1000},
    });
    let model = Model::new(ModelConfig::from_folder(folder).unwrap());
    first_trainer(serde_json::from_value(spec).unwrap(), model, Ranks::alone(), folder).unwrap()
}

/// The samples in one micro-batch, as one group or as a group each.
fn batch(step: u32, prompt: u32, grouped: bool) -> RankBatch {
    let places = || {
        (0..GROUP).flat_map(|sample| (0..prompt + completion(sample)).map(move |at| (sample, at)))
    };
    let token = |(sample, at): (u32, u32)| {
        let seed = if at < prompt { 0 } else { sample * 31 + 7 };
        i64::from((at * 7919 + seed + step) % VOCABULARY)
    };
    let mask: Vec<u8> = places().map(|(_, at)| u8::from(at >= prompt)).collect();
    let sequence = |sample| Sequence {
        sample,
        micro_batch: 0,
        tokens: prompt + completion(sample),
        segments: Vec::new(),
    };
    let row = |sample: u32| SampleRow {
        group: if grouped { 0 } else { sample },
        reward: 0.0,
        trainable_tokens: completion(sample),
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
            micro_batch_minibatch: vec![0],
            sequences: (0..GROUP).map(sequence).collect(),
            samples: (0..GROUP).map(row).collect(),
        },
        tokens_T: places().map(token).collect(),
        sampler_logprobs_T: vec![0.0; mask.len()],
        loss_mask_T: mask,
    }
}

fn main() {
    rljob_collective::keep_freed_memory();
    let folder = tempfile::tempdir().unwrap();
    let trainer = std::cell::RefCell::new((trainer(folder.path()), 0));
    for (name, prompt, aim) in CASES {
        let step = |grouped| {
            let (trainer, step) = &mut *trainer.borrow_mut();
            *step += 1;
            let started = Instant::now();
            let metrics = trainer.step(*step, &batch(*step, prompt, grouped)).unwrap();
            (started.elapsed().as_secs_f64(), metrics.get(COMPUTED_TOKENS).unwrap())
        };
        let pass = |grouped| {
            let (trainer, step) = &mut *trainer.borrow_mut();
            let started = Instant::now();
            trainer.validate(*step, &batch(*step, prompt, grouped)).unwrap();
            started.elapsed().as_secs_f64()
        };
        let tokens = format!("{:.0} tokens instead of {:.0}", step(true).1, step(false).1);
        let (shared, repeated) = in_turn(ROUNDS, || step(true).0, || step(false).0);
        let figures = format!("a step computes {tokens} in {shared:.2} s instead of {repeated:.2}");
        row(&format!("{name}-step"), &figures, repeated / shared, Aim::AtLeast(aim));
        let (shared, repeated) = in_turn(ROUNDS, || pass(true), || pass(false));
        let figures = format!("log-probabilities take {shared:.2} s instead of {repeated:.2}");
        row(&format!("{name}-logprobs"), &figures, repeated / shared, Aim::AtLeast(aim));
    }
}
