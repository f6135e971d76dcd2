//! Training throughput of the SmolLM2-135M shape with 4 × 512 tokens, compared with transformers
//! and PyTorch eager with the same threads and dtype, in alternating steps. Prints `bench NAME
//! RATIO AIM holds|short`; speed is not asserted.
//!
//! Requires Python with torch and transformers: `RLJOB_PYTHON`, by default that of the cache.
//! `OMP_NUM_THREADS` sets the threads of both.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rljob_learner::model::{Model, ModelConfig};
use rljob_learner::ranks::Ranks;
use rljob_learner::startup::first_trainer;
use rljob_learner::trainer::Trainer;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_tests::bench::{Aim, Peer, in_turn, python, row, skipped};
use serde_json::json;

const SEQUENCES: u32 = 4;
const TOKENS: u32 = 512;
/// Measured steps of each side, after one for warm-up.
const ROUNDS: usize = 5;
const AIM: f64 = 1.0;

/// SmolLM2-135M's shape, without weights.
fn write_config(folder: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152,
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 100_000.0, "max_position_embeddings": 8192,
        "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

fn trainer(folder: &Path) -> Trainer {
    let spec = json!({
        "model": {"path": folder, "weights": "Random"},
        "storage": {"hostPath": {"path": "/unused"}},
        "dataset": {"train": {"path": "/unused.jsonl", "prompt": "{{q}}", "completion": "{{a}}"}},
        "algorithm": {"sft": {}},
        "optimizer": {"learningRate": 1e-5},
        "training": {"steps": 1000},
    });
    first_trainer(
        serde_json::from_value(spec).unwrap(),
        Model::new(ModelConfig::from_folder(folder).unwrap()),
        Ranks::alone(),
        folder,
    )
    .unwrap()
}

/// All sequences in one micro-batch, with all tokens trained except the first.
fn batch(step: u32) -> RankBatch {
    let length = (SEQUENCES * TOKENS) as usize;
    RankBatch {
        header: BatchHeader {
            step,
            rank: 0,
            world_size: 1,
            micro_batch_minibatch: vec![0],
            sequences: (0..SEQUENCES)
                .map(|sample| Sequence {
                    sample,
                    micro_batch: 0,
                    tokens: TOKENS,
                    segments: Vec::new(),
                })
                .collect(),
            samples: (0..SEQUENCES)
                .map(|group| SampleRow {
                    group,
                    reward: 0.0,
                    trainable_tokens: TOKENS - 1,
                    rank: 0,
                    minibatch: 0,
                    truncated: false,
                    turn_rewards: Vec::new(),
                })
                .collect(),
        },
        tokens_T: (0..i64::from(SEQUENCES * TOKENS)).map(|row| row * 7919 % 49152).collect(),
        loss_mask_T: (0..length as u32).map(|row| u8::from(row % TOKENS != 0)).collect(),
        sampler_logprobs_T: vec![0.0; length],
    }
}

fn main() {
    let Some(python) = python() else {
        return skipped(
            "training-tokens",
            "no Python with torch and transformers; set RLJOB_PYTHON to one",
        );
    };
    rljob_collective::keep_freed_memory();
    let folder = tempfile::tempdir().unwrap();
    write_config(folder.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/training_peer.py");
    let mut command = Command::new(python);
    command
        .arg(script)
        .arg(folder.path())
        .args([SEQUENCES.to_string(), TOKENS.to_string()])
        .env("CUDA_VISIBLE_DEVICES", "");
    let (mut peer, mut trainer, mut step) =
        (Peer::start(&mut command).unwrap(), trainer(folder.path()), 0);
    let ours = || {
        step += 1;
        let start = Instant::now();
        trainer.step(step, &batch(step)).unwrap();
        start.elapsed().as_secs_f64()
    };
    let (ours, theirs) = in_turn(ROUNDS, ours, || peer.ask("step").unwrap());
    let tokens = f64::from(SEQUENCES * TOKENS);
    let figures = format!(
        "{:.0} tok/s; transformers and PyTorch eager {:.0} tok/s",
        tokens / ours,
        tokens / theirs
    );
    row("training-tokens", &figures, theirs / ours, Aim::AtLeast(AIM));
}
