//! Data loading: renders and shuffles the rows of a dataset and serves prompts by loader position.
//!
//! ```text
//!  file or folder ─ files, reader ─▶ fields ─ rows ─▶ rendered rows that fit ─┐
//!  (seed, epoch) ─ row_order ─▶ permutation ──────────────────────────────────┴─▶ prompt(position)
//! ```
//!
//! `prompt` is a pure function of (data, spec, seed, position), so a restarted run needs only the
//! position. Must not depend on steps or prompt groups.

mod bounded_parquet;
mod error;
mod files;
mod location;
mod reader;
mod row_order;
mod rows;
mod token_counts;

use std::path::PathBuf;

use rljob_crds::data::{EvaluationDataset, TrainDataset};

pub use error::DataError;
pub use files::{FileSelector, select_remote};
pub use location::RowLocation;

use files::SplitFiles;
use reader::{Fields, ReadLimits, RowReader};
use row_order::RowOrder;
use rows::{Row, Templates};
use token_counts::{ROW_DEADLINE, count_tokens};

use crate::reward::Rewards;
use crate::text::{PromptStyle, TextTokenizer};

/// Rows tokenized per parallel batch.
const BATCH: usize = 16384;

/// A prompt with its tokens and its reference answer or completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Loader position, from 0; continues across epochs.
    pub position: u64,
    /// Row number over all files, from 0; blank lines are not counted.
    pub row: u64,
    /// Rendered prompt without the chat template.
    pub text: String,
    /// Token ids, chat template included.
    pub tokens: Vec<i64>,
    /// Reference answer; `None` if the dataset has no answer field.
    pub answer: Option<String>,
    /// Target tokens with the end-of-sequence token; `None` if the dataset has no `completion`.
    pub completion_tokens: Option<Vec<i64>>,
}

/// Rendered rows. Tokenization happens on access.
pub struct Dataset {
    path: PathBuf,
    rows: Vec<Row>,
    dropped: u64,
    order: RowOrder,
    style: PromptStyle,
    tokenizer: TextTokenizer,
}

/// Settings common to training and evaluation data.
struct Source<'a> {
    path: &'a str,
    selector: FileSelector<'a>,
    templates: Templates,
    style: PromptStyle,
    max_prompt_tokens: Option<u32>,
    limit: usize,
}

impl Dataset {
    /// Opens training data, which is unbounded and reshuffled each epoch by (`seed`, epoch).
    pub fn open_train(
        spec: &TrainDataset,
        tokenizer: &TextTokenizer,
        seed: u64,
    ) -> Result<Self, DataError> {
        check_eos_token(spec.completion.as_deref(), tokenizer)?;
        let source = Source {
            path: spec.path.as_deref().unwrap_or_default(),
            selector: FileSelector {
                split: spec.split.as_deref(),
                default_split: "train",
                subset: spec.subset.as_deref(),
            },
            templates: Templates::new(
                &spec.prompt,
                spec.system.as_deref(),
                spec.completion.as_deref(),
                spec.answer.as_deref(),
            )?,
            style: PromptStyle {
                format: spec.format,
                arguments: spec.chat_template_arguments.clone(),
            },
            max_prompt_tokens: spec.max_prompt_tokens,
            limit: usize::MAX,
        };
        source.open(tokenizer, Some(seed))
    }

    /// Opens evaluation data: the first `limit` rows that fit, in file order.
    pub fn open_evaluation(
        spec: &EvaluationDataset,
        tokenizer: &TextTokenizer,
    ) -> Result<Self, DataError> {
        check_eos_token(spec.completion.as_deref(), tokenizer)?;
        let source = Source {
            path: spec.path.as_deref().unwrap_or_default(),
            selector: FileSelector {
                split: spec.split.as_deref(),
                default_split: "test",
                subset: spec.subset.as_deref(),
            },
            templates: Templates::new(
                &spec.prompt,
                spec.system.as_deref(),
                spec.completion.as_deref(),
                spec.answer.as_deref(),
            )?,
            style: PromptStyle {
                format: spec.format,
                arguments: spec.chat_template_arguments.clone(),
            },
            max_prompt_tokens: spec.max_prompt_tokens,
            limit: spec.limit as usize,
        };
        source.open(tokenizer, None)
    }

    /// Number of rows, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "opening data without rows is an error")]
    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Number of rows dropped because their prompts exceed `maxPromptTokens`.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the prompt of row `order(position ÷ len)[position mod len]`.
    pub fn prompt(&self, position: u64) -> Result<Prompt, DataError> {
        let index = self.order.row(position);
        let Some(row) = self.rows.get(index as usize) else {
            return Err(DataError::Empty { path: self.path.clone() });
        };
        Ok(Prompt {
            position,
            row: row.number,
            text: row.prompt.clone(),
            tokens: row.prompt(&self.tokenizer, &self.style)?,
            answer: row.answer.clone(),
            completion_tokens: row.completion(&self.tokenizer)?,
        })
    }

    /// Checks that every prompt fits the context with its completion, or with one token if
    /// completions are sampled.
    pub fn check_lengths(&self, context: u32) -> Result<(), DataError> {
        for row in &self.rows {
            let (location, prompt, completion) =
                (row.location.clone(), row.prompt_tokens, row.completion_tokens.max(1));
            if prompt == 0 {
                return Err(DataError::EmptyPrompt { location });
            }
            if prompt + completion > context as usize {
                return Err(DataError::TooLong { location, prompt, completion, context });
            }
        }
        Ok(())
    }

    /// Checks that the rewards can use the reference answer of every row.
    pub fn check_answers(&self, rewards: &Rewards) -> Result<(), DataError> {
        for row in &self.rows {
            match row.answer.as_deref() {
                Some(answer) => rewards.check_answer(answer).map_err(|source| {
                    DataError::Answer { location: row.location.clone(), source }
                })?,
                None if rewards.needs_answers() => {
                    return Err(DataError::NoAnswerField { path: self.path.clone() });
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Completions need an end-of-sequence token.
fn check_eos_token(completion: Option<&str>, tokenizer: &TextTokenizer) -> Result<(), DataError> {
    if completion.is_some() && tokenizer.eos_token_id().is_none() {
        Err(DataError::NoEosToken)
    } else {
        Ok(())
    }
}

impl Source<'_> {
    fn open(self, tokenizer: &TextTokenizer, seed: Option<u64>) -> Result<Dataset, DataError> {
        let path = PathBuf::from(self.path);
        let SplitFiles { paths, rows: expected } = files::select(&path, self.selector)?;
        let mut reader = (0..).zip(RowReader::new(paths, ReadLimits::default()));
        let (mut rows, mut dropped) = (Vec::new(), 0);
        while rows.len() < self.limit {
            let mut batch = self.batch(&mut reader, self.limit - rows.len())?;
            if batch.is_empty() {
                let found = rows.len() as u64 + dropped;
                if let Some(expected) = expected.filter(|expected| *expected != found) {
                    return Err(DataError::RowCount { path, found, expected });
                }
                break;
            }
            let before = batch.len();
            batch = count_tokens(batch, tokenizer, &self.style, ROW_DEADLINE)?;
            batch.retain(|row| {
                self.max_prompt_tokens.is_none_or(|limit| row.prompt_tokens <= limit as usize)
            });
            dropped += (before - batch.len()) as u64;
            rows.append(&mut batch);
        }
        match (rows.is_empty(), self.max_prompt_tokens) {
            (true, Some(limit)) if dropped > 0 => {
                return Err(DataError::AllDropped { path, dropped, limit });
            }
            (true, _) => return Err(DataError::Empty { path }),
            (false, _) => {
                tracing::info!(path = self.path, rows = rows.len(), dropped, "opened the data");
            }
        }
        let order = RowOrder::new(seed, rows.len() as u64);
        Ok(Dataset { path, rows, dropped, order, style: self.style, tokenizer: tokenizer.clone() })
    }

    fn batch(
        &self,
        reader: &mut impl Iterator<Item = (u64, Result<(RowLocation, Fields), DataError>)>,
        limit: usize,
    ) -> Result<Vec<Row>, DataError> {
        let rendered = |(number, row): (u64, Result<(RowLocation, Fields), DataError>)| {
            let (location, fields) = row?;
            self.templates.row(location, number, &fields)
        };
        reader.take(limit.min(BATCH)).map(rendered).collect()
    }
}

#[cfg(test)]
mod tests;
