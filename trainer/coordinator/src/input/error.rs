//! Errors of the input of a run.

use std::path::PathBuf;

use rljob_storage::model_folder::ModelFolderError;

use super::hub;
use crate::data::{DataError, FeedbackError};
use crate::persistence::data_identity::DataIdentityError;
use crate::reward::RewardError;
use crate::teacher::TeacherError;
use crate::text::TextError;
use crate::workflow::WorkflowError;

/// Input that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The tokenizer or chat template.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The verifier.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// A served teacher.
    #[error(transparent)]
    Teacher(#[from] TeacherError),
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
    #[error("training.epochs is {epochs}, which is {steps} steps of this data, but {problem}")]
    Epochs { epochs: u32, steps: u32, problem: String },
    /// Several engines rejected the same prompt.
    #[error("several engines reject the prompt at row {row}: {message}")]
    PromptRejected {
        row: u64,
        /// The engine's words.
        message: String,
    },
}
