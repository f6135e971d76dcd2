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

use rljob_protocol::batch::RankBatch;
use rljob_tests::bench::{Aim, Peer, in_turn, row, skipped};
use rljob_tests::files::python;
use serde_json::Value;

use self::support::{Sample, trainer};

mod support;

/// SmolLM2-135M's shape.
const LAYERS: u32 = 30;
const VOCABULARY: u32 = 49_152;
const SEQUENCES: u32 = 4;
const TOKENS: u32 = 512;
/// Measured steps of each side, after one for warm-up.
const ROUNDS: usize = 5;
const AIM: f64 = 1.0;

/// All sequences in one micro-batch, with all tokens trained except the first.
fn batch(step: u32) -> RankBatch {
    let sample =
        |group| Sample { group, micro_batch: 0, tokens: TOKENS, trainable_tokens: TOKENS - 1 };
    let samples: Vec<Sample> = (0..SEQUENCES).map(sample).collect();
    let places = 0..SEQUENCES * TOKENS;
    let token = |place| i64::from(place * 7919 % VOCABULARY);
    let mask = places.clone().map(|place| u8::from(place % TOKENS != 0)).collect();
    support::batch(step, &samples, places.map(token).collect(), mask)
}

fn main() {
    let python = match python() {
        Ok(python) => python,
        Err(error) => return skipped("training-tokens", &format!("{error:#}")),
    };
    rljob_collective::keep_freed_memory();
    let folder = tempfile::tempdir().unwrap();
    // Writes the configuration that the peer reads.
    let mut trainer = trainer(folder.path(), LAYERS, VOCABULARY, &Value::Null);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/training_peer.py");
    let mut command = Command::new(python);
    command
        .arg(script)
        .arg(folder.path())
        .args([SEQUENCES.to_string(), TOKENS.to_string()])
        .env("CUDA_VISIBLE_DEVICES", "");
    let (mut peer, mut step) = (Peer::start(&mut command).unwrap(), 0);
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
