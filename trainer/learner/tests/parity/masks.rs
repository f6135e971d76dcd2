//! Dropout of the inputs of adapters in the comparison with PyTorch, which gets the same masks.

use std::path::{Path, PathBuf};

use rljob_crds::lora::LoraTarget;
use rljob_learner::model::dropout::{Dropout, NumberedSequence};
use rljob_learner::model::{Model, PackedTokens};
use tch::{Kind, Tensor};

use super::{LENGTHS, PROMPTS};

const PASS: u64 = 11;

fn dropout(probability: f64, packed: &PackedTokens) -> Dropout {
    let sequence = |(index, &tokens): (usize, &usize)| {
        let (group, sample) = (index as u64 / 2, index as u64);
        NumberedSequence { group, sample, tokens, prompt_tokens: PROMPTS[index / 2] }
    };
    let numbers: Vec<i32> =
        LENGTHS.iter().enumerate().map(sequence).flat_map(NumberedSequence::numbers).collect();
    Dropout::new(probability, PASS, &packed.of_rows(&numbers))
}

/// The tokens of the case with dropout of this probability.
pub fn with_dropout(mut packed: PackedTokens, probability: Option<f64>) -> PackedTokens {
    let dropout = probability.map(|probability| dropout(probability, &packed));
    packed.set_dropout(dropout);
    packed
}

/// Writes the factors of the inputs of all linear layers, by the names of modules.
pub fn write(folder: &Path, (probability, model): (f64, &Model), packed: &PackedTokens) -> PathBuf {
    let (config, path) = (model.config(), folder.join("dropout.safetensors"));
    let dropout = dropout(probability, packed);
    let queries = config.num_attention_heads * config.head_dim;
    let columns = |target| match target {
        LoraTarget::OProj => queries,
        LoraTarget::DownProj => config.intermediate_size,
        _ => config.hidden_size,
    };
    let factors = |(layer, (linear, target)): (usize, (usize, LoraTarget))| {
        let part = if linear < 4 { "self_attn" } else { "mlp" };
        let factors = dropout.factors((layer, linear), columns(target), Kind::Float).unwrap();
        (format!("model.layers.{layer}.{part}.{}", target.module()), factors)
    };
    let all: Vec<(String, Tensor)> = (0..config.num_hidden_layers)
        .flat_map(|layer| LoraTarget::ALL.into_iter().enumerate().map(move |one| (layer, one)))
        .map(factors)
        .collect();
    let views: Vec<(&str, &Tensor)> = all.iter().map(|(name, one)| (name.as_str(), one)).collect();
    Tensor::write_safetensors(&views, &path).unwrap();
    path
}
