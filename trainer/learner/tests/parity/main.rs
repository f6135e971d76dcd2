//! Passes, losses and AdamW compared with transformers, autograd and torch in fp32: every value
//! within 1e-4, and every tensor within 1e-4 of its norm.
//!
//! Requires Python with torch and transformers (`RLJOB_PYTHON`, by default that of the cache);
//! skipped otherwise.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints skips and measurements"
)]

mod adapters;
mod comparison;
mod models;
mod peft;

use std::path::Path;

use adapters::compare_adapters;
use comparison::compare_model;
use models::{qwen2, qwen3, random_model};
use peft::{assert_classifier, assert_export};
use rljob_tests::files::{peft_packages, python, required};
use serde_json::{Value, json};

fn compare_random(change: impl FnOnce(&mut Value)) {
    let Some(python) = required(python()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let differences = compare_model(&python, &random_model(folder.path(), change));
    assert!(differences.iter().all(|difference| *difference <= 1e-4), "{differences:?}");
}

#[test]
fn an_exported_llama_matches_transformers() {
    compare_random(|_| ());
    compare_random(|config| config["tie_word_embeddings"] = true.into());
}

#[test]
fn an_exported_llama_with_llama_3_1_rope_scaling_matches_transformers() {
    compare_random(|config| {
        config["rope_parameters"] = json!({
            "rope_theta": 500.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        });
    });
}

#[test]
fn an_exported_qwen2_matches_transformers() {
    compare_random(qwen2);
}

#[test]
fn an_exported_qwen3_matches_transformers() {
    for tied in [false, true] {
        compare_random(|config| {
            qwen3(config);
            config["tie_word_embeddings"] = tied.into();
        });
    }
}

#[test]
fn adapters_match_the_low_rank_path_of_pytorch() {
    let Some(python) = required(python()) else { return };
    let tied: fn(&mut Value) = |config| config["tie_word_embeddings"] = true.into();
    for change in [tied, qwen2, qwen3] {
        let folder = tempfile::tempdir().unwrap();
        let model = random_model(folder.path(), change);
        for dropout in [None, Some(0.3)] {
            let differences = compare_adapters(&python, &model, dropout);
            println!("adapters with dropout {dropout:?} differ by {differences:?}");
            assert!(differences.iter().all(|difference| *difference <= 1e-4), "{differences:?}");
        }
    }
}

#[test]
fn an_export_of_adapters_has_the_same_logits_in_peft_as_the_merged_model() {
    let Some(python) = required(python()) else { return };
    let Some(packages) = required(peft_packages()) else { return };
    let llama: fn(&mut Value) = |_| ();
    for change in [llama, qwen2, qwen3] {
        let folder = tempfile::tempdir().unwrap();
        assert_export(&python, &packages, &random_model(folder.path(), change));
    }
}

#[test]
fn adapters_of_a_reward_model_have_the_scores_and_gradients_of_a_classifier_in_peft() {
    let Some(python) = required(python()) else { return };
    let Some(packages) = required(peft_packages()) else { return };
    let llama: fn(&mut Value) = |_| ();
    for change in [llama, qwen2, qwen3] {
        let folder = tempfile::tempdir().unwrap();
        assert_classifier(&python, &packages, &random_model(folder.path(), change));
    }
}

/// For the export of a real run: `RLJOB_PARITY_MODEL=FOLDER cargo test -p rljob-learner --test
/// parity -- --nocapture`. Over dozens of layers, rounding in fp32 reaches 1e-4 of the norm of some
/// gradients, which are therefore only printed.
#[test]
fn the_model_of_the_environment_variable_has_the_logits_of_transformers() {
    let Some(folder) = std::env::var_os("RLJOB_PARITY_MODEL") else {
        println!("skipped: RLJOB_PARITY_MODEL is not set to a model folder");
        return;
    };
    let Some(python) = required(python()) else { return };
    let [logits, ..] = compare_model(&python, Path::new(&folder));
    assert!(logits <= 1e-4, "logits differ by {logits}");
}
