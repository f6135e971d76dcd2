//! Errors of datasets and their templates, with the file and the line or row.

use std::path::PathBuf;

use crate::data::dropped::FilterReason;
use crate::data::location::RowLocation;
use crate::reward::UnusableAnswer;
use crate::text::TextError;

/// Syntax error in a line of a JSONL file, with its column.
#[derive(Debug, thiserror::Error)]
#[error("{message} at column {column}")]
pub struct LineError {
    message: String,
    /// In bytes, from 1.
    column: usize,
}

impl LineError {
    /// `error` is that of the line alone.
    pub(super) fn new(error: &serde_json::Error) -> Self {
        let column = error.column();
        let message = if error.is_eof() {
            "the line is truncated, or its object continues on the next line: it ends".to_owned()
        } else {
            let text = error.to_string();
            text.split(" at line ").next().unwrap_or_default().to_owned()
        };
        Self { message, column }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("failed to read the data at {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("failed to read the Parquet file {}", path.display())]
    Parquet { path: PathBuf, source: parquet::errors::ParquetError },
    /// README.md or dataset_info.json is malformed.
    #[error("invalid dataset card {}: {message}", path.display())]
    Card { path: PathBuf, message: String },
    /// The spec sets a field for dataset folders, but the path is a file.
    #[error(
        "dataset.{field} applies to dataset folders, but {} is a file: remove the field",
        path.display()
    )]
    NotAFolder {
        path: PathBuf,
        /// `split` or `subset`.
        field: &'static str,
    },
    #[error(
        "the dataset folder {} has no .parquet or .jsonl file (save_to_disk writes Arrow files: \
         use to_parquet)",
        path.display()
    )]
    NoData { path: PathBuf },
    #[error(
        "the dataset folder {} has no split `{split}`: set dataset.split to one of {found}",
        path.display()
    )]
    NoSplit {
        path: PathBuf,
        split: String,
        /// Existing splits, separated by commas.
        found: String,
    },
    #[error(
        "the dataset folder {} has no subset `{subset}`; its README.md lists {found}",
        path.display()
    )]
    NoSubset {
        path: PathBuf,
        subset: String,
        /// Existing subsets, separated by commas.
        found: String,
    },
    #[error(
        "the dataset folder {} has several subsets and no default: \
         set dataset.subset to one of {found}",
        path.display()
    )]
    NoDefaultSubset {
        path: PathBuf,
        /// Existing subsets, separated by commas.
        found: String,
    },
    #[error(
        "the data at {} has {found} rows, expected {expected} according to dataset_info: \
         is the download complete?",
        path.display()
    )]
    RowCount { path: PathBuf, found: u64, expected: u64 },
    #[error("{location} is too large: more than {limit} bytes")]
    LongRow {
        location: RowLocation,
        /// Bytes.
        limit: u64,
    },
    #[error(
        "the rows of {} are too large for the size of the file: is it a compression bomb?",
        path.display()
    )]
    Expansion { path: PathBuf },
    /// A path of the dataset card, or a link.
    #[error(
        "{} is outside the dataset folder {}: copy the file into the folder, or set the path of \
         the dataset to it",
        path.display(),
        folder.display()
    )]
    Outside { path: PathBuf, folder: PathBuf },
    #[error("the data at {} has no rows", path.display())]
    Empty { path: PathBuf },
    #[error(
        "filters drop all {dropped} rows of the data at {}; the first: {reason}",
        path.display()
    )]
    AllDropped { path: PathBuf, dropped: usize, reason: FilterReason },
    #[error("field `{field}` in {location} is {found}, expected a pass rate from 0 to 1")]
    PassRate { location: RowLocation, field: String, found: String },
    #[error("{location} is not a JSON object")]
    Json { location: RowLocation, source: LineError },
    /// A file without rows in a supported format.
    #[error("the data at {} {problem}", path.display())]
    Format {
        path: PathBuf,
        /// Predicate of the file, with what to do.
        problem: &'static str,
    },
    #[error(
        "chosen and rejected are equal in all {pairs} pairs; the first is in {location}: check the \
         templates dataset.chosen and dataset.rejected"
    )]
    EqualPairs {
        pairs: u64,
        /// The first pair.
        location: RowLocation,
    },
    /// A row lacks a field that the spec uses.
    #[error("{location} has no field `{field}`: {found}")]
    MissingField {
        location: RowLocation,
        field: String,
        /// Fields that the row has.
        found: String,
    },
    #[error(
        "the fields of {location} that rewards receive have {bytes} bytes as JSON, more than \
         {limit}: name fewer in rewardFields of the dataset"
    )]
    LongFields { location: RowLocation, bytes: usize, limit: usize },
    #[error(
        "field `{field}` in {location} is {found}, expected a string, a number, a list or an object"
    )]
    FieldType { location: RowLocation, field: String, found: &'static str },
    #[error("field `{field}` in {location} {problem}")]
    RowField {
        location: RowLocation,
        field: String,
        /// Predicate of the field, for example `is not a list`.
        problem: String,
    },
    #[error("the tools of rows, in field `{field}`, need another model")]
    Tools { field: String, source: TextError },
    #[error("the template dataset.{template} is not valid Jinja")]
    Template {
        /// `prompt`, `system` or `completion`.
        template: &'static str,
        source: minijinja::Error,
    },
    #[error("failed to render dataset.{template} for {location}")]
    Render {
        location: RowLocation,
        /// `prompt`, `system` or `completion`.
        template: &'static str,
        source: minijinja::Error,
    },
    #[error("failed to tokenize {location}")]
    Tokens { location: RowLocation, source: TextError },
    #[error(
        "the tokens of {location} take longer than {limit:?}: shorten the row, or check the \
         regular expressions in the tokenizer.json of the model"
    )]
    SlowTokenizer { location: RowLocation, limit: std::time::Duration },
    #[error("the tokenizer panicked")]
    Tokenizer,
    #[error("the prompt of {location} is empty")]
    EmptyPrompt { location: RowLocation },
    #[error(
        "dataset.{template} is empty for {location}: remove the row, or correct the template or \
         its fields"
    )]
    EmptyCompletion {
        location: RowLocation,
        /// `completion`, `chosen` or `rejected`.
        template: &'static str,
    },
    #[error(
        "{location} has {prompt} prompt and {completion} completion tokens; the model's context \
         (max_position_embeddings) is {context}: {}",
        if *completion > 1 {
            "set maxTokens of the dataset or shorten the row"
        } else {
            "set maxPromptTokens of the dataset or shorten the row"
        }
    )]
    TooLong {
        location: RowLocation,
        prompt: usize,
        /// 1 if completions are sampled.
        completion: usize,
        context: u32,
    },
    /// A reward needs reference answers, but the spec sets no answer field.
    #[error(
        "the rewards need reference answers: \
         set dataset.answer to the field of {} with the answers",
        path.display()
    )]
    NoAnswerField { path: PathBuf },
    /// More rows than `maxUnusableShare` have reference answers that no completion could match.
    #[error(
        "{unusable} of {rows} rows of the data at {} have unusable reference answers, more than \
         dataset.maxUnusableShare = {share}; the first is in {location}",
        path.display()
    )]
    Unusable {
        path: PathBuf,
        unusable: usize,
        rows: usize,
        share: f64,
        /// The first such row.
        location: RowLocation,
        source: Box<UnusableAnswer>,
    },
    #[error(
        "the rows of {} have more than {limit} categories: set dataset.evaluation.category to a \
         field with fewer values",
        path.display()
    )]
    Categories { path: PathBuf, limit: usize },
    #[error("the category of {location} has more than {limit} bytes")]
    LongCategory { location: RowLocation, limit: usize },
    /// Completions need an end-of-sequence token.
    #[error(
        "the model folder sets no end-of-sequence token: \
         set eos_token_id in its generation_config.json"
    )]
    NoEosToken,
}
