//! Exactness of training: the maximum difference of each kind relative to its bound. Prints `bench
//! NAME RATIO 1.00 holds|short`.
//!
//! ```text
//!              compared                                       with                 bound
//!  parity-*    logits, losses and gradients of small models   transformers, fp32   1e-4
//!  loss-curve  losses of 20 steps of fine-tuning              torch.optim.AdamW    1e-4
//!  grpo-*      advantages and losses                          AReaL's values       their rounding
//!  fsdp-*      losses on 2 and 4 ranks                        1 rank               1e-6
//!              gradients, relative to their maximum           1 rank               1e-5
//! ```

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

#[path = "../tests/parity/adapters.rs"]
mod adapters;
#[path = "../tests/parity/comparison.rs"]
mod comparison;
#[path = "exactness/curve.rs"]
mod curve;
#[path = "exactness/golden.rs"]
mod golden;
#[path = "../tests/parity/models.rs"]
mod models;
#[path = "../tests/sharding/ranks.rs"]
mod ranks;

use std::path::Path;

use rljob_crds::algorithm::Sharding;
use rljob_tests::bench::{Aim, row, skipped};
use rljob_tests::files::python;
use serde_json::Value;

/// Prints a difference and its bound.
fn difference(name: &str, what: &str, difference: f64, bound: f64) {
    row(
        name,
        &format!("{what} {difference:.1e} of {bound:.0e} allowed"),
        difference / bound,
        Aim::AtMost(1.0),
    );
}

fn parity(
    python: &Path,
    name: &str,
    compare: impl FnOnce(&Path, &Path) -> [f64; 3],
    change: impl FnOnce(&mut Value),
) {
    let folder = tempfile::tempdir().unwrap();
    let differences = compare(python, &models::random_model(folder.path(), change));
    difference(
        name,
        "a logit, loss or gradient differs by at most",
        differences.into_iter().fold(0.0, f64::max),
        1e-4,
    );
}

fn main() {
    match python() {
        Ok(python) => {
            let compare = comparison::compare_model;
            parity(&python, "parity-llama", compare, |_| ());
            parity(&python, "parity-qwen2", compare, models::qwen2);
            parity(&python, "parity-qwen3", compare, models::qwen3);
            let of_adapters =
                |python: &Path, folder: &Path| adapters::compare_adapters(python, folder, None);
            parity(&python, "parity-lora", of_adapters, models::qwen3);
            difference("loss-curve", "a loss differs by at most", curve::difference(&python), 1e-4);
        }
        Err(error) => skipped("parity and loss-curve", &format!("{error:#}")),
    }
    let [advantage, leave_one_out, surrogate, decoupled] = golden::differences();
    difference(
        "grpo-advantages",
        "a group-normalized advantage differs by at most",
        advantage,
        golden::ADVANTAGE,
    );
    difference(
        "grpo-advantages-rloo",
        "a leave-one-out advantage differs by at most",
        leave_one_out,
        golden::ADVANTAGE,
    );
    difference("grpo-loss", "the plain surrogate differs by", surrogate, golden::LOSS);
    difference(
        "grpo-loss-decoupled",
        "the decoupled loss with dual clip differs by",
        decoupled,
        golden::LOSS,
    );
    for (name, sharding) in [("fsdp", Sharding::Full), ("fsdp-held", Sharding::Gradients)] {
        for world_size in [2, 4] {
            let [loss, gradient] = ranks::differences(world_size, sharding);
            difference(&format!("{name}-{world_size}-loss"), "the loss differs by", loss, 1e-6);
            difference(
                &format!("{name}-{world_size}-gradient"),
                "a gradient differs by at most",
                gradient,
                1e-5,
            );
        }
    }
}
