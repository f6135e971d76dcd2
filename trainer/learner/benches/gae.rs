//! Advantages of 1,024 packed sequences of 64 to 4,096 tokens, compared with a Python loop over
//! the same tokens, in alternating rounds. Prints `bench NAME RATIO AIM holds|short`; speed is not
//! asserted, equal results are.
//!
//! Requires Python: `RLJOB_PYTHON`, by default that of the cache.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rljob_kernels::gae::PackedSlices;
use rljob_tests::bench::{Aim, Peer, in_turn, row, skipped};
use rljob_tests::files::python;

const SEQUENCES: u32 = 1024;
const ROUNDS: usize = 5;
const AIM: f64 = 100.0;
const DISCOUNT: f64 = 0.99;
const LAMBDA: f64 = 0.95;

/// Tokens of each sequence, spread evenly over 64 to 4,096; gae_peer.py has the same.
fn lengths() -> impl Iterator<Item = u32> {
    (0..SEQUENCES).map(|sequence| 64 + sequence * 2741 % 4033)
}

/// Rewards or values; gae_peer.py has the same.
fn wave(tokens: u32, factor: u32) -> Vec<f32> {
    (0..tokens).map(|token| (f64::from(token * factor % 1999) / 1999.0 - 0.5) as f32).collect()
}

fn main() {
    let python = match python() {
        Ok(python) => python,
        Err(error) => return skipped("gae", &format!("{error:#}")),
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/gae_peer.py");
    let mut peer = Peer::start(Command::new(python).arg(script)).unwrap();

    let ends: Vec<i64> = lengths()
        .scan(0, |end, length| {
            *end += i64::from(length);
            Some(*end)
        })
        .collect();
    let tokens = lengths().sum();
    let (rewards, values) = (wave(tokens, 7), wave(tokens, 13));
    let end_values = vec![0.0; SEQUENCES as usize];
    let lambdas = vec![LAMBDA; SEQUENCES as usize];
    let (end_values, lambdas) = (&end_values, &lambdas);
    let packed = PackedSlices { ends: &ends, values: &values, end_values, lambdas };
    let ours = || {
        let rewards = rewards.clone();
        let start = Instant::now();
        black_box(black_box(&packed).advantages(rewards, DISCOUNT));
        start.elapsed().as_secs_f64()
    };
    let (ours, theirs) = in_turn(ROUNDS, ours, || peer.ask("seconds").unwrap());

    let advantages = packed.advantages(rewards.clone(), DISCOUNT);
    let sum: f64 = advantages.iter().map(|advantage| f64::from(advantage.abs())).sum();
    let other = peer.ask("sum").unwrap();
    assert!((sum - other).abs() <= 1e-7 * other, "{sum} is not {other}");
    let (ours_ms, theirs_ms) = (1e3 * ours, 1e3 * theirs);
    let figures = format!("{tokens} tokens in {ours_ms:.1} ms; a Python loop {theirs_ms:.0} ms");
    row("gae", &figures, theirs / ours, Aim::AtLeast(AIM));
}
