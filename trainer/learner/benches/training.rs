//! Training tokens per second of the SmolLM2-135M shape, 4 × 512 tokens, beside transformers and PyTorch eager with the same threads and dtype, step by step
//! in turn. Prints `bench NAME RATIO AIM holds|short`; it asserts nothing about speed.
//!
//! Needs a Python with torch and transformers: `RLJOB_PYTHON`, else the one in the cache. `OMP_NUM_THREADS` sets the threads of both.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark fails by panicking and prints its figures")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use rljob_learner::model::{Model, ModelConfig};
use rljob_learner::ranks::Ranks;
use rljob_learner::startup::first_trainer;
use rljob_learner::step::Trainer;
use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use serde_json::json;

const SEQUENCES: u32 = 4;
const TOKENS: u32 = 512;
/// Steps of each side that count, after one that does not.
const ROUNDS: u32 = 5;
const AIM: f64 = 1.0;

fn python() -> Option<PathBuf> {
    let cached = || Some(std::env::home_dir()?.join(".cache/rljob/sglang-0.5.12/venv/bin/python"));
    std::env::var_os("RLJOB_PYTHON").map(PathBuf::from).or_else(cached).filter(|path| path.exists())
}

/// SmolLM2-135M's shape, without weights.
fn write_config(folder: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 100_000.0,
        "max_position_embeddings": 8192, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2,
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
    first_trainer(serde_json::from_value(spec).unwrap(), Model::new(ModelConfig::from_folder(folder).unwrap()), Ranks::alone(), folder).unwrap()
}

/// All sequences in one micro-batch, each token but the first trained.
fn batch(step: u32) -> RankBatch {
    let length = (SEQUENCES * TOKENS) as usize;
    RankBatch {
        header: BatchHeader {
            step,
            rank: 0,
            world_size: 1,
            micro_batch_minibatch: vec![0],
            sequences: (0..SEQUENCES).map(|sample| Sequence { sample, micro_batch: 0, tokens: TOKENS }).collect(),
            samples: (0..SEQUENCES)
                .map(|group| SampleRow { group, reward: 0.0, trainable_tokens: TOKENS - 1, rank: 0, minibatch: 0, truncated: false })
                .collect(),
        },
        tokens_T: (0..i64::from(SEQUENCES * TOKENS)).map(|row| row * 7919 % 49152).collect(),
        loss_mask_T: (0..length as u32).map(|row| u8::from(row % TOKENS != 0)).collect(),
        sampler_logprobs_T: vec![0.0; length],
    }
}

/// The peer's process; a line in, a step's seconds out.
struct Peer {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(python: &Path, folder: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/training_peer.py");
        let mut command = Command::new(python);
        command.arg(script).arg(folder).args([SEQUENCES.to_string(), TOKENS.to_string()]);
        let mut child = command.env("CUDA_VISIBLE_DEVICES", "").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn step(&mut self) -> f64 {
        self.child.stdin.as_mut().unwrap().write_all(b"step\n").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let Some(python) = python() else {
        println!("bench training-tokens skipped: no Python with torch and transformers; set RLJOB_PYTHON to one");
        return;
    };
    rljob_collective::keep_freed_memory();
    let folder = tempfile::tempdir().unwrap();
    write_config(folder.path());
    let (mut peer, mut trainer) = (Peer::start(&python, folder.path()), trainer(folder.path()));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let start = Instant::now();
        trainer.step(round + 1, &batch(round + 1)).unwrap();
        let seconds = [start.elapsed().as_secs_f64(), peer.step()];
        if round > 0 {
            ours.push(seconds[0]);
            theirs.push(seconds[1]);
        }
    }
    let tokens = f64::from(SEQUENCES * TOKENS);
    let (ours, theirs) = (tokens / median(ours), tokens / median(theirs));
    println!("training-tokens: {ours:.0} tok/s; transformers and PyTorch eager {theirs:.0} tok/s");
    let verdict = if ours / theirs >= AIM { "holds" } else { "short" };
    println!("bench training-tokens {:.2} {AIM:.2} {verdict}", ours / theirs);
}
