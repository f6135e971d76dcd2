//! Speed of computing the prompt of a group's samples once: a training step and a log-probability
//! pass over the same tokens, with the samples in one prompt group and each in one alone, in
//! alternating rounds. Prints `bench NAME RATIO AIM holds|short`; speed is not asserted.
//!
//! The model has the width of SmolLM2-135M, 3 layers and a vocabulary of 4,096, so that layers and
//! head have about the shares of the whole model. `OMP_NUM_THREADS` sets the threads.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::time::Instant;

use rljob_protocol::batch::RankBatch;
use rljob_protocol::metrics::COMPUTED_TOKENS;
use rljob_tests::bench::{Aim, in_turn, row};
use serde_json::Value;

use self::support::{Sample, trainer};

mod support;

const GROUP: u32 = 8;
/// Measured rounds, after one for warm-up.
const ROUNDS: usize = 3;
const LAYERS: u32 = 3;
const VOCABULARY: u32 = 4096;

/// A name, tokens of the prompt, and the speed-up that is aimed at.
const CASES: [(&str, u32, f64); 2] = [("prompt-128", 128, 1.3), ("prompt-256", 256, 1.6)];

/// Completions of 64 to 190 tokens.
fn completion(sample: u32) -> u32 {
    64 + sample * 18
}

/// The samples in one micro-batch, as one group or as a group each.
fn batch(step: u32, prompt: u32, grouped: bool) -> RankBatch {
    let sample = |index| Sample {
        group: if grouped { 0 } else { index },
        micro_batch: 0,
        tokens: prompt + completion(index),
        trainable_tokens: completion(index),
    };
    let samples: Vec<Sample> = (0..GROUP).map(sample).collect();
    let places = || {
        (0..GROUP).flat_map(|sample| (0..prompt + completion(sample)).map(move |at| (sample, at)))
    };
    let token = |(sample, at): (u32, u32)| {
        let seed = if at < prompt { 0 } else { sample * 31 + 7 };
        i64::from((at * 7919 + seed + step) % VOCABULARY)
    };
    let mask = places().map(|(_, at)| u8::from(at >= prompt)).collect();
    support::batch(step, &samples, places().map(token).collect(), mask)
}

fn main() {
    rljob_collective::keep_freed_memory();
    let folder = tempfile::tempdir().unwrap();
    let trainer =
        std::cell::RefCell::new((trainer(folder.path(), LAYERS, VOCABULARY, &Value::Null), 0));
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
