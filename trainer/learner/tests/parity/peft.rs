//! Exports of adapters that PEFT loads: logits of PEFT's model, of the merged export in
//! transformers and of the learner are equal up to rounding.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use rljob_learner::model::{Model, ModelConfig, PackedTokens, hugging_face};
use serde_json::json;
use tch::{Kind, Tensor};

use crate::adapters::adapted;
use crate::comparison::outputs;

const SEQUENCES: [&[i64]; 2] = [&[5, 17, 3, 90, 2, 2, 41], &[33, 1, 64]];
const TOLERANCE: f64 = 1e-5;

/// Logits of PEFT and transformers.
fn reference(
    [python, packages]: [&Path; 2],
    [base, adapter, merged]: [&Path; 3],
) -> HashMap<String, Tensor> {
    let case = json!({"base": base, "adapter": adapter, "merged": merged, "sequences": SEQUENCES});
    outputs(Command::new(python).env("PYTHONPATH", packages), "peft_export.py", &case)
}

/// Exports adapters of the model in `folder` and compares the logits; returns the largest
/// difference.
pub fn compare_export(python: &Path, packages: &Path, folder: &Path) -> f64 {
    let model = Model::new(ModelConfig::from_folder(folder).unwrap());
    let blocks = hugging_face::read_tensors(folder, model.layout(), Kind::Float).unwrap();
    let (mut parameters, staged) = adapted(&model, folder, blocks, 0.25);
    let exports = tempfile::tempdir().unwrap();
    let [adapter, merged] = ["adapter", "merged"].map(|name| exports.path().join(name));
    staged.write(&adapter).unwrap();
    let blocks: Vec<Tensor> = (0..model.layout().blocks().len())
        .map(|block| parameters.gather(block).unwrap().copy())
        .collect();
    hugging_face::write_folder(&merged, folder, model.layout(), &blocks, Kind::Float).unwrap();
    let found = reference([python, packages], [folder, &adapter, &merged]);
    assert_eq!(found["dropout"].double_value(&[]).to_bits(), 0.25_f64.to_bits());
    let largest = |one: &Tensor, other: &Tensor| (one - other).abs().max().double_value(&[]);
    assert!(largest(&found["peft"], &found["base"]) > 0.01, "the adapters change nothing");

    let tokens = SEQUENCES.concat();
    let lengths = SEQUENCES.map(<[i64]>::len);
    let vocab_size = model.config().vocab_size;
    let packed = PackedTokens::new(&tokens, &vec![0; tokens.len()], &lengths, vocab_size).unwrap();
    let ours = model.logits(&mut parameters, &packed).unwrap();
    let others = ["merged", "unloaded"].map(|name| &found[name]).into_iter().chain([&ours]);
    others.map(|logits| largest(logits, &found["peft"])).fold(0.0, f64::max)
}

/// Asserts the bound of [`compare_export`].
pub fn assert_export(python: &Path, packages: &Path, folder: &Path) {
    let difference = compare_export(python, packages, folder);
    println!("logits of an export of adapters differ from PEFT's by {difference:.1e}");
    assert!(difference <= TOLERANCE, "{difference}");
}
