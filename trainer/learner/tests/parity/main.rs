//! The hand-written passes, losses and AdamW against transformers, autograd and torch, in fp32:
//! every value within 1e-4, and every tensor within 1e-4 of its norm.
//!
//! Needs a Python with torch and transformers (`RLJOB_PYTHON`, else the one in the cache); without
//! it the tests say that they were skipped.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it skipped and measured"
)]

mod comparison;

use std::path::{Path, PathBuf};

use comparison::{compare_model, qwen2, qwen3, random_model};
use serde_json::{Value, json};

fn python() -> Option<PathBuf> {
    let python = rljob_tests::bench::python();
    if python.is_none() {
        println!("skipped: no Python with transformers; set RLJOB_PYTHON to one");
    }
    python
}

fn compare_random(change: impl FnOnce(&mut Value)) {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let differences = compare_model(&python, &random_model(folder.path(), change));
    assert!(differences.iter().all(|difference| *difference <= 1e-4), "{differences:?}");
}

#[test]
fn a_llama_written_by_us_is_loaded_by_transformers_and_gives_its_numbers() {
    compare_random(|_| ());
    compare_random(|config| config["tie_word_embeddings"] = true.into());
}

#[test]
fn a_llama_with_llama_3_1_rope_scaling_gives_transformers_numbers() {
    compare_random(|config| {
        config["rope_parameters"] = json!({"rope_theta": 500.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64});
    });
}

#[test]
fn a_qwen2_written_by_us_is_loaded_by_transformers_and_gives_its_numbers() {
    compare_random(qwen2);
}

#[test]
fn a_qwen3_written_by_us_is_loaded_by_transformers_and_gives_its_numbers() {
    for tied in [false, true] {
        compare_random(|config| {
            qwen3(config);
            config["tie_word_embeddings"] = tied.into();
        });
    }
}

/// For the export of a real run: `RLJOB_PARITY_MODEL=FOLDER cargo test -p rljob-learner --test
/// parity -- --nocapture`. Through dozens of layers fp32's own rounding reaches 1e-4 of some
/// gradient's norm, so that those are printed only.
#[test]
fn a_model_that_is_named_gives_transformers_logits() {
    let Some(folder) = std::env::var_os("RLJOB_PARITY_MODEL") else {
        println!("skipped: RLJOB_PARITY_MODEL names no model folder");
        return;
    };
    let Some(python) = python() else { return };
    let [logits, ..] = compare_model(&python, Path::new(&folder));
    assert!(logits <= 1e-4, "logits differ by {logits}");
}
