//! Golden bits: SHA-256 of metrics and final weights after deterministic steps of each algorithm.
//!
//! The hashes are valid for one set of libtorch kernels, which depends on the CPU; they are
//! recorded on two kinds of CPUs. The test is skipped if a hash of basic operations differs from
//! the recorded ones. A changed hash is a change of numerics and requires a comparison of losses
//! before and after.

use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;

use rljob_protocol::batch::{BatchHeader, RankBatch, SampleRow, Sequence};
use rljob_protocol::status::StepMetrics;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use super::fixture::{
    VOCABULARY, algorithms, on_ranks, small_model, spec, train, trainer, weights,
};
use crate::ranks::Ranks;

/// `kernels HASH`, then `CASE HASH` for each case, by kind of CPU.
const GOLDEN: [&str; 2] =
    [include_str!("bits/recorded-1.txt"), include_str!("bits/recorded-2.txt")];

/// Metrics that the hash covers, by their names in JSON.
const METRICS: [&str; 15] = [
    "loss",
    "entropy",
    "kl",
    "clipFraction",
    "clipFractionUpper",
    "clipFractionLower",
    "clipFractionDual",
    "mismatchMean",
    "mismatchMax",
    "referenceKl",
    "behaviorWeight",
    "behaviorBounded",
    "gradientNorm",
    "tokens",
    "trainableTokens",
];

fn add_metrics(hash: &mut Sha256, steps: &[StepMetrics]) {
    for step in steps {
        let fields = serde_json::to_value(step).unwrap();
        for name in METRICS {
            if let Some(value) = fields.get(name).and_then(Value::as_f64) {
                hash.update(name);
                hash.update(value.to_le_bytes());
            }
        }
    }
}

fn digest(steps: &[StepMetrics], weights: &[Vec<u32>]) -> String {
    let mut hash = Sha256::new();
    add_metrics(&mut hash, steps);
    for bits in weights.iter().flatten() {
        hash.update(bits.to_le_bytes());
    }
    format!("{:x}", hash.finalize())[..16].to_owned()
}

/// Three sequences in one micro-batch, long enough that a chunk of trained tokens ends within one.
fn long_batch(step: u32) -> RankBatch {
    const TOKENS: u32 = 600;
    let row = |index: u32| SampleRow {
        group: 0,
        reward: f64::from((index + step) % 2),
        trainable_tokens: TOKENS - 2,
        rank: 0,
        minibatch: 0,
        truncated: false,
        ended_by_limit: false,
        turn_rewards: Vec::new(),
    };
    let positions = || (0..3 * TOKENS).map(|row| (row / TOKENS, row % TOKENS));
    let token =
        |(index, at): (u32, u32)| 1 + (step * 11 + index * 5 + at * at * 3) % (VOCABULARY - 1);
    let mask: Vec<u8> = positions().map(|(_, at)| u8::from(at >= 2)).collect();
    RankBatch {
        header: BatchHeader {
            step,
            rank: 0,
            world_size: 1,
            micro_batch_minibatch: vec![0],
            sequences: (0..3)
                .map(|sample| Sequence {
                    sample,
                    micro_batch: 0,
                    tokens: TOKENS,
                    segments: Vec::new(),
                })
                .collect(),
            samples: (0..3).map(row).collect(),
        },
        tokens_T: positions().map(|position| i64::from(token(position))).collect(),
        sampler_logprobs_T: mask.iter().map(|&mask| -4.5 * f32::from(mask)).collect(),
        teacher_logprobs_T: None,
        loss_mask_T: mask,
    }
}

fn short_steps(folder: &Path, algorithm: &Value, minibatches: u32, ranks: Rc<Ranks>) -> String {
    rljob_collective::set_num_threads(1);
    let mut trainer = trainer(spec(algorithm, "Random", minibatches), folder, ranks);
    let steps = train(&mut trainer, 1..=4, minibatches);
    digest(&steps, &weights(&trainer))
}

fn long_steps(folder: &Path, algorithm: &Value) -> String {
    rljob_collective::set_num_threads(1);
    let mut trainer = trainer(spec(algorithm, "Random", 1), folder, Ranks::alone());
    let steps: Vec<_> =
        (1..=2).map(|step| trainer.step(step, &long_batch(step)).unwrap()).collect();
    digest(&steps, &weights(&trainer))
}

/// Hash of the results of the operations that the model uses.
fn kernels() -> String {
    rljob_collective::set_num_threads(1);
    let wave = |rows: i64, columns: i64| {
        Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)).sin().view([rows, columns])
    };
    let product = wave(61, 48).matmul(&wave(48, 97));
    let batched = wave(61, 97).unsqueeze(1).bmm(&wave(61, 97).unsqueeze(2));
    let results = [
        product.exp(),
        product.logsumexp([-1].as_slice(), true),
        product.norm(),
        batched,
        (&product * 0.1).silu(),
    ];
    let mut hash = Sha256::new();
    for result in results {
        for value in Vec::<f32>::try_from(result.reshape([-1])).unwrap() {
            hash.update(value.to_le_bytes());
        }
    }
    format!("{:x}", hash.finalize())[..16].to_owned()
}

/// The recorded algorithms, with a name each.
fn cases() -> Vec<(String, Value)> {
    let others = [
        json!({"grpo": {"proximalLogprobs": "Sampler"}}),
        json!({"grpo": {"klCoefficient": 0.2, "klTerm": "Reward"}}),
        json!({"sft": {}}),
    ];
    let named = |(index, algorithm): (usize, Value)| {
        let kind = algorithm.as_object().unwrap().keys().next().unwrap();
        (format!("{kind}-{index}"), algorithm)
    };
    algorithms().into_iter().chain(others).enumerate().map(named).collect()
}

#[test]
fn metrics_and_weights_have_the_recorded_bits() {
    let mut found = format!("kernels {}\n", kernels());
    if !GOLDEN.iter().any(|golden| golden.starts_with(&found)) {
        eprintln!("skipped: these libtorch {found} are not the recorded ones");
        return;
    }
    let folder = small_model();
    for (name, algorithm) in cases() {
        for minibatches in [1, 2] {
            let one = short_steps(folder.path(), &algorithm, minibatches, Ranks::alone());
            writeln!(found, "{name}/minibatches-{minibatches} {one}").unwrap();
        }
        let two = on_ranks(2, |ranks| short_steps(folder.path(), &algorithm, 2, ranks));
        writeln!(found, "{name}/2-ranks {}", two.join("-")).unwrap();
        writeln!(found, "{name}/long {}", long_steps(folder.path(), &algorithm)).unwrap();
    }
    assert!(GOLDEN.contains(&found.as_str()), "found:\n{found}");
}
