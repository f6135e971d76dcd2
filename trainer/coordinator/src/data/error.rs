//! What can be wrong with a data file or its templates; each error names file and line.

use std::path::PathBuf;

use crate::reward::UnusableAnswer;
use crate::text::TextError;

/// Data that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file cannot be read.
    #[error("failed to read the data file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No row in the file.
    #[error("the data file {} has no rows", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A line is not a JSON object.
    #[error("{} line {line} is not a JSON object", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// Why.
        source: serde_json::Error,
    },
    /// A field that is named in the spec is not in a row.
    #[error("{} line {line} has no field `{field}`", path.display())]
    MissingField {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The field.
        field: String,
    },
    /// An answer is neither text nor a number.
    #[error("field `{field}` in {} line {line} is {found}, expected a string or a number", path.display())]
    FieldType {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
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
    #[error("the template dataset.{template} fails on {} line {line}", path.display())]
    Render {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// `prompt` or `completion`.
        template: &'static str,
        /// Why.
        source: minijinja::Error,
    },
    /// A rendered row cannot be made into tokens.
    #[error("failed to make tokens of {} line {line}", path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// Why.
        source: TextError,
    },
    /// The reward needs answers and the spec names no field for them.
    #[error("rewards compare with answers: set dataset's answer to the field of {} that holds them", path.display())]
    NoAnswerField {
        /// The file.
        path: PathBuf,
    },
    /// The reward can compare nothing with an answer.
    #[error("the answer in {} line {line} cannot be used", path.display())]
    Answer {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// Why.
        source: UnusableAnswer,
    },
    /// Texts to learn end with a token that the model folder does not name.
    #[error("the model folder names no end-of-sequence token: set eos_token_id in its generation_config.json")]
    NoEndToken,
}
