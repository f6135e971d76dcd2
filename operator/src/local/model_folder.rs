//! Checks of a model folder on this machine, before a process reads it.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_crds::data::PromptFormat;
use rljob_crds::model::InitialWeights;
use rljob_protocol::classifier::check_reward_model;
use serde_json::Value;

/// Maximum size of a model's JSON file in bytes.
const MAX_CONFIG: u64 = 16 << 20;

/// What a model folder lacks that every run reads. The coordinator checks the rest.
pub fn incomplete_model(folder: &Path) -> Option<String> {
    if !folder.is_dir() {
        return Some(format!("{} is not a folder", folder.display()));
    }
    let missing =
        ["config.json", "tokenizer.json"].into_iter().find(|file| !folder.join(file).is_file());
    if let Some(file) = missing {
        return Some(format!("{} has no {file}", folder.display()));
    }
    let path = folder.join("config.json");
    match read_json(&path) {
        Ok(config) => {
            let missing = ["max_position_embeddings", "vocab_size"]
                .into_iter()
                .find(|field| !config.get(*field).is_some_and(Value::is_u64))?;
            Some(format!("{} sets no {missing}", path.display()))
        }
        Err(error) if error.is_data() || error.is_syntax() => {
            Some(format!("{} is not valid JSON: {error}", path.display()))
        }
        Err(error) => Some(format!("failed to read {}: {error}", path.display())),
    }
}

fn read_json(path: &Path) -> serde_json::Result<Value> {
    let file = fs::File::open(path).map_err(serde_json::Error::io)?;
    serde_json::from_reader(io::BufReader::new(file.take(MAX_CONFIG)))
}

/// Weights that learners, or engines of a reward model, read.
pub fn missing_weights(folder: &Path, weights: InitialWeights) -> Option<String> {
    let files = ["model.safetensors", "model.safetensors.index.json"];
    let is_there = || files.iter().any(|file| folder.join(file).is_file());
    (weights == InitialWeights::Pretrained && !is_there()).then(|| {
        format!(
            "{} has no model.safetensors: set the folder of a model with its weights",
            folder.display()
        )
    })
}

/// The chat template, if prompts use one.
pub fn missing_template(folder: &Path, spec: &RLJobSpec) -> Option<String> {
    let train = Some(&spec.dataset.train).filter(|train| !train.is_absent());
    let suites = spec.dataset.suites().into_iter().map(|suite| suite.data.format);
    let mut formats = train.map(|train| train.format).into_iter().chain(suites);
    if !formats.any(|format| format == PromptFormat::Chat)
        || folder.join("chat_template.jinja").is_file()
    {
        return None;
    }
    let config = read_json(&folder.join("tokenizer_config.json"));
    let has_template = config.is_ok_and(|config| config.get("chat_template").is_some());
    (!has_template).then(|| {
        format!(
            "{} has no chat template (chat_template.jinja, or chat_template in \
                tokenizer_config.json); add one, or set format: Text",
            folder.display()
        )
    })
}

/// Why a folder with a `config.json` has no reward model.
pub fn not_a_reward_model(folder: &Path) -> Option<String> {
    let path = folder.join("config.json");
    let checked = check_reward_model(&read_json(&path).ok()?);
    checked.err().map(|what| format!("{} {what}", path.display()))
}
