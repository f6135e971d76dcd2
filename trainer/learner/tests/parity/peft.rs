//! Exports of adapters that PEFT loads: logits of PEFT's model, of the merged export in
//! transformers and of the learner are equal up to rounding, and so are scores, loss and gradients
//! of a reward model.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use rljob_learner::fsdp::TrainedParameters;
use rljob_learner::model::{Head, Model, ModelConfig, PackedTokens, hugging_face};
use rljob_learner::objective::Objective;
use rljob_learner::objective::reward_model::RewardModel;
use rljob_learner::publish::adapters::StagedAdapters;
use serde_json::json;
use tch::{Kind, Tensor};

use crate::adapters::adapted;
use crate::comparison::{Compared, outputs, pairs};

const SEQUENCES: [&[i64]; 4] =
    [&[5, 17, 3, 90, 2, 2, 41], &[33, 1, 64], &[33, 1, 8, 7, 2], &[5, 17, 2]];
const TOLERANCE: f64 = 1e-5;

/// Logits of PEFT and transformers.
fn reference(
    [python, packages]: [&Path; 2],
    [base, adapter, merged]: [&Path; 3],
    is_classifier: bool,
) -> HashMap<String, Tensor> {
    let case = json!({
        "base": base, "adapter": adapter, "merged": merged, "sequences": SEQUENCES,
        "isClassifier": is_classifier,
    });
    outputs(Command::new(python).env("PYTHONPATH", packages), "peft_export.py", &case)
}

fn largest(one: &Tensor, other: &Tensor) -> f64 {
    (one - other).abs().max().double_value(&[])
}

/// The sequences, whose last tokens are trained.
fn packed(model: &Model) -> PackedTokens {
    let is_last = |tokens: &&[i64]| [vec![0; tokens.len() - 1], vec![1]].concat();
    let mask: Vec<u8> = SEQUENCES.iter().flat_map(is_last).collect();
    let lengths = SEQUENCES.map(<[i64]>::len);
    PackedTokens::new(&SEQUENCES.concat(), &mask, &lengths, model.config().vocab_size).unwrap()
}

/// Values of PEFT and transformers of an export over the base in `folder`.
fn exported(
    python: [&Path; 2],
    folder: &Path,
    model: &Model,
    (parameters, staged): (&mut TrainedParameters, &StagedAdapters),
) -> HashMap<String, Tensor> {
    let exports = tempfile::tempdir().unwrap();
    let [adapter, merged] = ["adapter", "merged"].map(|name| exports.path().join(name));
    staged.write(&adapter).unwrap();
    let blocks: Vec<Tensor> = (0..model.layout().blocks().len())
        .map(|block| parameters.gather(block).unwrap().copy())
        .collect();
    hugging_face::write_folder(&merged, folder, model.layout(), &blocks, Kind::Float).unwrap();
    reference(python, [folder, &adapter, &merged], model.head() == Head::Scalar)
}

/// Exports adapters of the model in `folder` and compares the logits; returns the largest
/// difference.
pub fn compare_export(python: &Path, packages: &Path, folder: &Path) -> f64 {
    let model = Model::new(ModelConfig::from_folder(folder).unwrap());
    let blocks = hugging_face::read_tensors(folder, model.layout(), Kind::Float).unwrap();
    let (mut parameters, staged) = adapted(&model, folder, blocks, 0.25);
    let found = exported([python, packages], folder, &model, (&mut parameters, &staged));
    assert_eq!(found["dropout"].double_value(&[]).to_bits(), 0.25_f64.to_bits());
    assert!(largest(&found["peft"], &found["base"]) > 0.01, "the adapters change nothing");

    let ours = model.logits(&mut parameters, &packed(&model)).unwrap();
    let others = ["merged", "unloaded"].map(|name| &found[name]).into_iter().chain([&ours]);
    others.map(|logits| largest(logits, &found["peft"])).fold(0.0, f64::max)
}

/// Asserts the bound of [`compare_export`].
pub fn assert_export(python: &Path, packages: &Path, folder: &Path) {
    let difference = compare_export(python, packages, folder);
    println!("logits of an export of adapters differ from PEFT's by {difference:.1e}");
    assert!(difference <= TOLERANCE, "{difference}");
}

/// Exports adapters of a reward model over the model in `folder`, and asserts that its scores, its
/// loss of two pairs and the gradients are PEFT's.
pub fn assert_classifier(python: &Path, packages: &Path, folder: &Path) {
    let base = Model::new(ModelConfig::from_folder(folder).unwrap());
    let blocks = hugging_face::read_tensors(folder, base.layout(), Kind::Float).unwrap();
    let with_head = pairs::with_scalar_head(&base, folder, blocks);
    let model = base.with_head(Head::Scalar);
    let blocks = hugging_face::read_tensors(with_head.path(), model.layout(), Kind::Float).unwrap();
    let (mut parameters, staged) = adapted(&model, folder, blocks, 0.0);
    let found = exported([python, packages], folder, &model, (&mut parameters, &staged));

    let packed = packed(&model);
    let scores = model.scores(&mut parameters, &packed).unwrap();
    for name in ["peft", "merged", "unloaded"] {
        assert!(largest(&found[name], &scores) <= TOLERANCE, "{name}: {}, {scores}", found[name]);
    }
    let (streams, mut loss) = (pairs::streams(&packed, None), 0.0);
    let mut gradient = |scores_Q: &Tensor| {
        let of_pairs = RewardModel.score_loss(scores_Q, &streams);
        loss += of_pairs.loss.value();
        of_pairs.gradient_N
    };
    model.scores_forward_backward(&mut parameters, &packed, &mut gradient).unwrap();
    assert!((found["loss"].double_value(&[]) - loss).abs() <= TOLERANCE, "{loss}");
    let gradients = parameters.named_gradients(&model);
    assert_eq!(gradients.len() + 5, found.len(), "gradients, and five other values");
    for (name, gradient) in gradients {
        let name = name.trim_start_matches("base_model.model.");
        let expected = &found[name];
        let norm = expected.norm().double_value(&[]);
        assert!(norm > 0.0, "{name}");
        let difference = (expected - gradient).norm().double_value(&[]) / norm;
        assert!(difference <= 1e-4, "{name}: {difference}");
    }
}
