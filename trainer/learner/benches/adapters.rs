//! Cost of training adapters instead of all weights: time of a step, and memory of weights,
//! gradients and moments, in alternating rounds. Prints `bench NAME RATIO AIM holds|short`; speed
//! is not asserted.
//!
//! The model has the width of SmolLM2-135M, 6 layers and a vocabulary of 16,384, so that layers and
//! head have about the shares of the whole model. `OMP_NUM_THREADS` sets the threads.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::cell::RefCell;
use std::time::Instant;

use rljob_learner::fsdp::TrainedParameters;
use rljob_learner::trainer::Trainer;
use rljob_protocol::batch::RankBatch;
use rljob_tests::bench::{Aim, in_turn, row};
use serde_json::{Value, json};

use self::support::{Sample, trainer};

mod support;

/// Measured rounds, after one for warm-up.
const ROUNDS: usize = 5;
const LAYERS: u32 = 6;
const VOCABULARY: u32 = 16_384;
const SAMPLES: u32 = 8;
const TOKENS: u32 = 256;

/// Samples in `micro_batches` of equal size.
fn batch(step: u32, micro_batches: u32) -> RankBatch {
    let sample = |index| Sample {
        group: index,
        micro_batch: index * micro_batches / SAMPLES,
        tokens: TOKENS,
        trainable_tokens: TOKENS - 1,
    };
    let samples: Vec<Sample> = (0..SAMPLES).map(sample).collect();
    let token = |place: u32| i64::from((place * 7919 + step) % VOCABULARY);
    let places = 0..SAMPLES * TOKENS;
    let mask = places.clone().map(|place| u8::from(place % TOKENS > 0)).collect();
    support::batch(step, &samples, places.map(token).collect(), mask)
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
    let of = |lora: &Value| RefCell::new((trainer(folder.path(), LAYERS, VOCABULARY, lora), 0));
    let (adapters, all) = (of(&json!({"rank": 16})), of(&Value::Null));
    let with_dropout = of(&json!({"rank": 16, "dropout": 0.1}));
    for (name, adapters, micro_batches) in [
        ("adapters-step", &adapters, 1),
        ("adapters-step-micro-batches", &adapters, 8),
        ("adapters-step-dropout", &with_dropout, 1),
    ] {
        let step = |trainer: &RefCell<(Trainer, u32)>| {
            let (trainer, step) = &mut *trainer.borrow_mut();
            *step += 1;
            let started = Instant::now();
            trainer.step(*step, &batch(*step, micro_batches)).unwrap();
            started.elapsed().as_secs_f64()
        };
        let (ours, theirs) = in_turn(ROUNDS, || step(adapters), || step(&all));
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
