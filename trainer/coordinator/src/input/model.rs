//! Model folder of a run: its sizes, and checks of its tokenizer.

use std::path::Path;

use rljob_crds::data::PromptFormat;
use rljob_crds::{EnginePurpose, RLJobSpec, RunConfig};
use serde::Deserialize;

use super::error::InputError;
use crate::model_config;
use crate::pack::cost::{CostModel, ModelShape};
use crate::teacher::{self, Probes};
use crate::text::{TextError, TextTokenizer};

/// Sizes of `config.json`.
#[derive(Deserialize)]
pub(super) struct ModelConfig {
    pub max_position_embeddings: u32,
    pub vocab_size: i64,
}

/// Checks the tokenizer against the model, the spec and a teacher that engines of the job serve,
/// and reads no data. Blocks.
///
/// # Errors
/// What would fail a run at its start.
pub fn check_model(config: &RunConfig) -> Result<(), InputError> {
    let (tokenizer, _) = open_model(config)?;
    match config.spec.fixed_model(EnginePurpose::Teacher) {
        None => Ok(()),
        Some(teacher) => {
            Ok(teacher::check_folder(Path::new(teacher.path), &probes(config, &tokenizer)?)?)
        }
    }
}

/// Texts that tell the tokenizer of the policy from others.
pub(super) fn probes(config: &RunConfig, tokenizer: &TextTokenizer) -> Result<Probes, TextError> {
    Probes::new(&config.model_directory.display().to_string(), tokenizer)
}

/// The tokenizer and the sizes of the model, checked.
pub(super) fn open_model(config: &RunConfig) -> Result<(TextTokenizer, ModelConfig), InputError> {
    let spec = &config.spec;
    let tokenizer = TextTokenizer::open(&config.model_directory)?;
    let model = sizes(&config.model_directory)?;
    check_vocabulary(config, &tokenizer, model.vocab_size)?;
    check_template(spec, &tokenizer)?;
    check_stop_tokens(spec, model.vocab_size)?;
    Ok((tokenizer, model))
}

/// Checks that the model has a row for each token of the tokenizer.
fn check_vocabulary(
    config: &RunConfig,
    tokenizer: &TextTokenizer,
    vocabulary: i64,
) -> Result<(), InputError> {
    match tokenizer.largest_token_id().filter(|largest| *largest >= vocabulary) {
        Some(largest) => {
            let path = config.model_directory.clone();
            Err(InputError::Vocabularies { path, largest, vocabulary })
        }
        None => Ok(()),
    }
}

/// Checks that the chat template fits the tokenizer and the arguments of the spec.
fn check_template(spec: &RLJobSpec, tokenizer: &TextTokenizer) -> Result<(), TextError> {
    let train = Some(&spec.dataset.train).filter(|train| !train.is_absent());
    let train = train.map(|train| (train.format, &train.chat_template_arguments));
    let suites = spec.dataset.suites();
    let suites = suites.iter().map(|own| (own.data.format, &own.data.chat_template_arguments));
    for (format, arguments) in train.into_iter().chain(suites) {
        if format == PromptFormat::Chat {
            tokenizer.check_chat_template()?;
            tokenizer.check_arguments(arguments)?;
        }
    }
    Ok(())
}

fn check_stop_tokens(spec: &RLJobSpec, vocabulary: i64) -> Result<(), InputError> {
    let outside = spec.rollout.stop_token_ids.iter().find(|id| i64::from(**id) >= vocabulary);
    outside.map_or(Ok(()), |&id| Err(InputError::StopToken { id, vocabulary }))
}

fn sizes(folder: &Path) -> Result<ModelConfig, InputError> {
    let path = folder.join("config.json");
    model_config::read(&path).map_err(|source| InputError::ModelConfig { path, source })
}

/// Cost of training on a sequence with the model in `folder`. Blocks.
pub fn cost_model(folder: &Path) -> Result<CostModel, InputError> {
    let path = folder.join("config.json");
    let shape: Result<ModelShape, _> = model_config::read(&path);
    let shape = shape.map_err(|source| InputError::ModelShape { path, source })?;
    Ok(CostModel::new(&shape))
}
