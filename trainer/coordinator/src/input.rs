//! Input of a run: tokenizer, data, verifier and model limits, read and validated at start. Invalid
//! input fails the run without a restart.

pub mod hub;
mod workflow_checks;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use rljob_crds::algorithm::{Algorithm, DataKind};
use rljob_crds::data::{PromptFormat, Suite};
use rljob_crds::{RLJobSpec, RunConfig};
use rljob_storage::model_folder::{ModelFolderError, ModelFolderWait};
use serde::Deserialize;

use crate::data::{DataError, Dataset, FeedbackError, KeptFields};
use crate::pack::cost::{CostModel, ModelShape};
use crate::persistence::data_identity::{DataIdentity, DataIdentityError};
use crate::reward::{RewardError, Rewards, Runner};
use crate::teacher::{Probes, Teacher};
use crate::text::{TextError, TextTokenizer, ToolCallFormat};
use crate::workflow::{Lengths, ToolSet, Workflow, WorkflowError};
use workflow_checks::{check_workflow, tool_call_format};

/// Input that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The tokenizer or chat template.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The verifier.
    #[error(transparent)]
    Reward(#[from] RewardError),
    #[error("failed to create the client of the teacher's server")]
    Teacher(#[source] reqwest::Error),
    /// A data file.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The feedback template of a workflow.
    #[error(transparent)]
    Feedback(#[from] FeedbackError),
    #[error(transparent)]
    Workflow(#[from] WorkflowError),
    /// Rows that changed.
    #[error(transparent)]
    DataIdentity(#[from] DataIdentityError),
    /// `config.json`.
    #[error("failed to read `max_position_embeddings` and `vocab_size` from {}", path.display())]
    ModelConfig { path: PathBuf, source: std::io::Error },
    /// Sizes in `config.json`.
    #[error("failed to read the sizes of the model from {}", path.display())]
    ModelShape { path: PathBuf, source: std::io::Error },
    /// The tokenizer is another model's.
    #[error("the tokenizer in {} has token ids up to {largest}, and config.json there gives the \
        model a vocab_size of {vocabulary}: one of the two is another model's", path.display())]
    Vocabularies {
        /// The model folder.
        path: PathBuf,
        /// The tokenizer's largest id.
        largest: i64,
        /// `vocab_size`.
        vocabulary: i64,
    },
    /// A stop token that the model does not have.
    #[error("rollout.stopTokenIds contains {id}; the model has a vocab_size of {vocabulary}")]
    StopToken {
        id: u32,
        /// `vocab_size`.
        vocabulary: i64,
    },
    /// A prompt, or a prompt with its completion, does not fit.
    #[error(
        "row {row} of the {dataset} data has {tokens} tokens; the model's context \
            (max_position_embeddings) is {context}: remove the row or shorten it"
    )]
    TooLong {
        /// `training` or `evaluation`.
        dataset: &'static str,
        row: u64,
        tokens: usize,
        context: u32,
    },
    #[error("dataset.train is missing: nothing can be trained")]
    NoTrainingData,
    /// A prompt without tokens.
    #[error("row {row} of the {dataset} data has an empty prompt")]
    EmptyPrompt {
        /// `training` or `evaluation`.
        dataset: &'static str,
        row: u64,
    },
    /// The model folder of another job.
    #[error(transparent)]
    ModelFolder(#[from] ModelFolderError),
    /// A model or dataset repository.
    #[error(transparent)]
    Download(#[from] hub::DownloadError),
    /// Steps were lowered.
    #[error(
        "training.steps is {total}, but the run has done {done} steps: set it to {done} or more"
    )]
    TooFewSteps { done: u32, total: u32 },
    /// Several engines rejected the same prompt.
    #[error("several engines reject the prompt at row {row}: {message}")]
    PromptRejected {
        row: u64,
        /// The engine's words.
        message: String,
    },
}

/// A suite with its rows.
pub struct SuiteData {
    pub suite: Suite,
    pub data: Dataset,
}

impl SuiteData {
    /// Name of the data in files and messages.
    pub fn name(&self) -> &str {
        self.suite.name.as_deref().unwrap_or("evaluation")
    }
}

/// A run's input, checked.
pub struct Input {
    /// The tokenizer.
    pub tokenizer: TextTokenizer,
    /// Training data; none of an evaluation.
    pub train: Option<Dataset>,
    /// All rows of the training data that fit, before those without usable answers are dropped.
    pub train_identity: Option<DataIdentity>,
    /// Evaluation data by suite.
    pub evaluation: Vec<SuiteData>,
    /// The reward; none for `sft` without a reward.
    pub rewards: Option<Rewards>,
    /// Server of the teacher, if it is served.
    pub teacher: Option<Teacher>,
    /// Turns of a sample.
    pub workflow: Workflow,
    /// Format of the model's tool calls, if it is known and needed.
    pub tool_call_format: Option<ToolCallFormat>,
    /// Token ids are below this.
    pub vocabulary: i64,
    /// Longest sequence in tokens.
    pub context: u32,
}

/// Maximum size of `config.json` in bytes; the rest of a larger file is cut off.
const MAX_CONFIG: u64 = 16 << 20;

#[derive(Deserialize)]
struct ModelConfig {
    max_position_embeddings: u32,
    vocab_size: i64,
}

impl Input {
    /// Reads and checks everything. Blocks.
    pub fn open(config: &RunConfig, runner: &Runner) -> Result<Self, InputError> {
        let spec = &config.spec;
        let (tokenizer, model) = open_model(config)?;
        let rewards =
            (!spec.rewards.is_empty()).then(|| Rewards::new(&spec.rewards, runner)).transpose()?;
        let teacher = teacher(config, &tokenizer, model.vocab_size)?;
        let workflow = Workflow::new(&spec.rollout, &config.uid, runner)?;
        let tool_call_format = tool_call_format(&workflow, &tokenizer)?;
        let tools = workflow.tools().map(ToolSet::described).unwrap_or_default();
        let with_tools = tokenizer.with_tools(tools);
        let kept = workflow.kept_fields()?;
        let mut train = open_train(config, &with_tools, &kept)?;
        let open = |suite: Suite| {
            let data = Dataset::open_evaluation(&suite, &with_tools, &kept)?;
            Ok::<_, InputError>(SuiteData { suite, data })
        };
        let mut evaluation: Vec<SuiteData> =
            config.suites().into_iter().map(open).collect::<Result<_, _>>()?;
        for data in train.iter().chain(evaluation.iter().map(|own| &own.data)) {
            data.check_lengths(model.max_position_embeddings)?;
            check_workflow(spec, &workflow, data, &tokenizer)?;
        }
        let train_identity = train
            .as_ref()
            .map(|train| DataIdentity::new(spec, train.len(), train.fingerprint()))
            .transpose()
            .map_err(DataIdentityError::from)?;
        let share = spec.dataset.max_unusable_share;
        if let Some(rewards) = &rewards {
            train
                .as_mut()
                .filter(|_| spec.algorithm.has_rollouts())
                .map_or(Ok(()), |train| train.drop_unusable(rewards, share))?;
            for own in evaluation.iter_mut().filter(|own| own.suite.data.answer.is_some()) {
                own.data.drop_unusable(rewards, share)?;
            }
        }
        Ok(Self {
            tokenizer,
            train,
            train_identity,
            evaluation,
            rewards,
            teacher,
            workflow,
            tool_call_format,
            vocabulary: model.vocab_size,
            context: model.max_position_embeddings,
        })
    }

    /// Training data of a run that trains.
    ///
    /// # Errors
    /// The run has none.
    pub fn train(&self) -> Result<&Dataset, InputError> {
        self.train.as_ref().ok_or(InputError::NoTrainingData)
    }

    /// The data of training and of all suites.
    pub fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        self.train.iter().chain(self.evaluation.iter().map(|own| &own.data))
    }

    /// Maximum length of the first completion after a prompt of this number of tokens.
    pub fn room(
        &self,
        dataset: &'static str,
        row: u64,
        prompt: usize,
        lengths: Lengths,
    ) -> Result<u32, InputError> {
        match (prompt, lengths.room(prompt, 0)) {
            (0, _) => Err(InputError::EmptyPrompt { dataset, row }),
            (_, 0) => {
                Err(InputError::TooLong { dataset, row, tokens: prompt, context: self.context })
            }
            (_, room) => Ok(room),
        }
    }

    /// Lengths of a sample whose completions have at most `max_new_tokens` tokens.
    pub fn lengths(&self, spec: &RLJobSpec, max_new_tokens: u32) -> Lengths {
        Lengths::new(spec.rollout.workflow.as_ref(), self.context, max_new_tokens)
    }
}

/// Checks the tokenizer against the model and the spec, and reads no data. Blocks.
///
/// # Errors
/// What would fail a run at its start.
pub fn check_model(config: &RunConfig) -> Result<(), InputError> {
    open_model(config).map(|_| ())
}

fn open_model(config: &RunConfig) -> Result<(TextTokenizer, ModelConfig), InputError> {
    let spec = &config.spec;
    let tokenizer = TextTokenizer::open(&config.model_directory)?;
    let model = model_config(&config.model_directory)?;
    check_vocabulary(config, &tokenizer, model.vocab_size)?;
    check_template(spec, &tokenizer)?;
    check_stop_tokens(spec, model.vocab_size)?;
    Ok((tokenizer, model))
}

/// The server of the teacher, if it is served.
fn teacher(
    config: &RunConfig,
    tokenizer: &TextTokenizer,
    vocabulary: i64,
) -> Result<Option<Teacher>, InputError> {
    let algorithm = config.spec.algorithm.resolve();
    let Some(spec) = algorithm.and_then(Algorithm::teacher_server) else { return Ok(None) };
    let policy = config.model_directory.display().to_string();
    let probes = Probes::new(&policy, tokenizer)?;
    Teacher::new(spec, vocabulary, probes).map(Some).map_err(InputError::Teacher)
}

/// Opens the training data, which an evaluation lacks.
fn open_train(
    config: &RunConfig,
    tokenizer: &TextTokenizer,
    kept: &KeptFields,
) -> Result<Option<Dataset>, DataError> {
    let (train, spec) = (config.train_dataset(), &config.spec);
    if train.is_absent() {
        return Ok(None);
    }
    let open = match spec.algorithm.resolve().map(Algorithm::data) {
        Some(DataKind::Demonstrations) => Dataset::open_demonstrations,
        _ => Dataset::open_train,
    };
    open(&train, tokenizer, spec.training.seed, kept).map(Some)
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

fn model_config(folder: &Path) -> Result<ModelConfig, InputError> {
    let path = folder.join("config.json");
    read_json(&path).map_err(|source| InputError::ModelConfig { path, source })
}

/// Cost of training on a sequence with the model in `folder`. Blocks.
pub fn cost_model(folder: &Path) -> Result<CostModel, InputError> {
    let path = folder.join("config.json");
    let shape: Result<ModelShape, _> = read_json(&path);
    let shape = shape.map_err(|source| InputError::ModelShape { path, source })?;
    Ok(CostModel::new(&shape))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> std::io::Result<T> {
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(MAX_CONFIG).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(std::io::Error::from)
}

/// Waits for the export of another job, if the model is one.
pub async fn wait_for_model(config: &RunConfig) -> Result<(), InputError> {
    if config.spec.model.rljob.is_none() {
        return Ok(());
    }
    let mut wait = ModelFolderWait::new(&config.model_directory, &config.spec.model);
    while !wait.is_complete()? {
        tokio::time::sleep(ModelFolderWait::INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
