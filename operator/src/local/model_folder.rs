//! Checks of a model folder on this machine, before a process reads it.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_crds::data::PromptFormat;
use rljob_crds::model::InitialWeights;
use rljob_protocol::classifier::{check_language_model, check_reward_model};
use serde_json::Value;

use crate::validate::Problem;

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

/// Completions that no prompt leaves room for: the length of samples is limited by the model.
pub fn long_completions(folder: &Path, spec: &RLJobSpec) -> Option<Problem> {
    let (path, longest) = (folder.join("config.json"), spec.rollout.max_new_tokens);
    let context = read_json(&path).ok()?.get("max_position_embeddings")?.as_u64()?;
    let samples = spec.algorithm.has_rollouts() || !spec.algorithm.has_learners();
    (samples && u64::from(longest) >= context).then(|| {
        let message = format!(
            "is {longest}, but prompt and completion have at most {context} tokens together \
             (max_position_embeddings in {}): completions end there",
            path.display()
        );
        Problem::new("spec.rollout.maxNewTokens", message)
    })
}

fn read_json(path: &Path) -> serde_json::Result<Value> {
    let file = fs::File::open(path).map_err(serde_json::Error::io)?;
    serde_json::from_reader(io::BufReader::new(file.take(MAX_CONFIG)))
}

/// Weights that learners, or engines of a fixed model, read.
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
    rejected_by(check_reward_model, folder)
}

/// Why a folder with a `config.json` has no language model.
pub fn not_a_language_model(folder: &Path) -> Option<String> {
    rejected_by(check_language_model, folder)
}

fn rejected_by(check: fn(&Value) -> Result<(), String>, folder: &Path) -> Option<String> {
    let path = folder.join("config.json");
    let checked = check(&read_json(&path).ok()?);
    checked.err().map(|what| format!("{} {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::long_completions;
    use crate::validate::test_support::with_spec;

    #[test]
    fn completions_longer_than_the_context_of_the_model_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let of = |spec| long_completions(folder.path(), &with_spec(&spec).spec);
        let long = json!({"rollout": {"maxNewTokens": 64}});
        assert_eq!(of(long.clone()), None, "the model is not there");
        std::fs::write(&path, json!({"max_position_embeddings": 64}).to_string()).unwrap();
        let expected = format!(
            "spec.rollout.maxNewTokens: is 64, but prompt and completion have at most 64 tokens \
             together (max_position_embeddings in {}): completions end there",
            path.display()
        );
        assert_eq!(of(long).map(|warning| warning.to_string()), Some(expected));
        assert_eq!(of(json!({"rollout": {"maxNewTokens": 63}})), None);
    }
}
