//! What can be wrong with data or its templates; each error names the file and line, or row.

use std::path::PathBuf;

use super::read::Place;
use crate::reward::UnusableAnswer;
use crate::text::TextError;

/// Data that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be read.
    #[error("failed to read the data at {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A Parquet file is torn or none.
    #[error("failed to read the Parquet file {}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Why.
        source: parquet::errors::ParquetError,
    },
    /// README.md or dataset_info.json of a dataset folder is not understood.
    #[error("{} is not what a dataset folder has: {message}", path.display())]
    Card {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// A field for folders is set for a file.
    #[error("dataset.{field} is for dataset folders, and {} is a file: remove it", path.display())]
    NotAFolder {
        /// The file.
        path: PathBuf,
        /// `split` or `subset`.
        field: &'static str,
    },
    /// A folder without files that can be read.
    #[error(
        "the dataset folder {} has no .parquet or .jsonl file (a folder written by save_to_disk holds Arrow files: write it with to_parquet)",
        path.display()
    )]
    NoData {
        /// The folder.
        path: PathBuf,
    },
    /// A split is not there.
    #[error("the dataset folder {} has no split `{split}`, but {found}: set dataset's split", path.display())]
    NoSplit {
        /// The folder.
        path: PathBuf,
        /// The split.
        split: String,
        /// The splits there are.
        found: String,
    },
    /// A subset is not there.
    #[error("the dataset folder {} has no subset `{subset}`; its README.md lists {found}", path.display())]
    NoSubset {
        /// The folder.
        path: PathBuf,
        /// The subset.
        subset: String,
        /// The subsets there are.
        found: String,
    },
    /// Several subsets, and none is the default.
    #[error("the dataset folder {} has several subsets and no default: set dataset's subset to one of {found}", path.display())]
    Subsets {
        /// The folder.
        path: PathBuf,
        /// The subsets there are.
        found: String,
    },
    /// A folder has fewer or more rows than it says.
    #[error("the data at {} has {found} rows where its dataset_info says {expected}: is the download complete?", path.display())]
    Rows {
        /// The folder.
        path: PathBuf,
        /// Rows found.
        found: u64,
        /// Rows it should have.
        expected: u64,
    },
    /// No row.
    #[error("the data at {} has no rows", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
    /// No row is left.
    #[error("all {dropped} rows of the data at {} have prompts of more than maxPromptTokens = {limit} tokens", path.display())]
    AllDropped {
        /// The file or folder.
        path: PathBuf,
        /// Rows left out.
        dropped: u64,
        /// The limit.
        limit: u32,
    },
    /// A line is not a JSON object.
    #[error("{place} is not a JSON object")]
    Json {
        /// The line.
        place: Place,
        /// Why.
        source: serde_json::Error,
    },
    /// A field that is named in the spec is not in a row.
    #[error("{place} has no field `{field}`")]
    MissingField {
        /// The row.
        place: Place,
        /// The field.
        field: String,
    },
    /// An answer is neither text nor a number.
    #[error("field `{field}` in {place} is {found}, expected a string or a number")]
    FieldType {
        /// The row.
        place: Place,
        /// The field.
        field: String,
        /// What it is.
        found: &'static str,
    },
    /// A template of the spec is not valid Jinja.
    #[error("the template dataset.{template} is not valid")]
    Template {
        /// `prompt` or `completion`.
        template: &'static str,
        /// Why.
        source: minijinja::Error,
    },
    /// A template failed on a row.
    #[error("the template dataset.{template} fails on {place}")]
    Render {
        /// The row.
        place: Place,
        /// `prompt` or `completion`.
        template: &'static str,
        /// Why.
        source: minijinja::Error,
    },
    /// A rendered row cannot be made into tokens.
    #[error("failed to make tokens of {place}")]
    Tokens {
        /// The row.
        place: Place,
        /// Why.
        source: TextError,
    },
    /// The tokenizer's own code failed.
    #[error("the tokenizer failed on a row without saying why")]
    Tokenizer,
    /// A prompt without tokens.
    #[error("{place} gives an empty prompt")]
    EmptyPrompt {
        /// The row.
        place: Place,
    },
    /// A prompt leaves no room in the model's context, or with its completion does not fit.
    #[error(
        "{place} gives {prompt} prompt and {completion} completion tokens, and the model's context (max_position_embeddings) is {context}: \
         set dataset's maxPromptTokens, or shorten the row"
    )]
    TooLong {
        /// The row.
        place: Place,
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the completion; 1 where it is sampled.
        completion: usize,
        /// The context.
        context: u32,
    },
    /// The reward needs answers and the spec names no field for them.
    #[error("rewards compare with answers: set dataset's answer to the field of {} that holds them", path.display())]
    NoAnswerField {
        /// The file or folder.
        path: PathBuf,
    },
    /// The reward can compare nothing with an answer.
    #[error("the answer in {place} cannot be used")]
    Answer {
        /// The row.
        place: Place,
        /// Why.
        source: UnusableAnswer,
    },
    /// Texts to learn end with a token that the model folder does not name.
    #[error(
        "the model folder names no end-of-sequence token: set eos_token_id in its generation_config.json"
    )]
    NoEndToken,
}
