//! The prompts of a run: which row of the data stands at which position, and as which tokens.
//!
//! ```text
//!  file or folder ── folder, read ─▶ fields ── rows ─▶ rendered rows (text in memory), those that are too long left out ─┐
//!  (seed, epoch) ── order ─▶ permutation ─────────────────────────────────────────────────────────────────────────────────┴─▶ prompt(position)
//! ```
//!
//! A position's prompt is a pure function of (data, spec, seed, position): nothing here remembers
//! what was asked before, so a position is all that a restarted run needs. It must not know steps
//! or groups.

mod error;
mod folder;
mod order;
mod read;
mod rows;

use std::path::PathBuf;

use rljob_crds::data::{EvaluationDataset, PromptFormat, TrainDataset};

pub use error::DataError;
pub use read::Place;

use folder::{Files, Wanted};
use order::Order;
use read::Reader;
use rows::{Row, Templates};

use crate::reward::Verifier;
use crate::text::TextTokenizer;

/// Rows whose tokens are counted together.
const BATCH: usize = 16384;

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The loader position it was asked for, from 0; grows over epochs.
    pub position: u64,
    /// Row of the data, from 0, over all files, blank lines aside.
    pub row: u64,
    /// The rendered prompt, before any chat template.
    pub text: String,
    /// Its tokens, chat template included.
    pub tokens: Vec<i64>,
    /// The reference answer; none if the dataset names no answer field.
    pub answer: Option<String>,
    /// The text to learn as tokens, the end-of-sequence token last; none if the dataset has no
    /// `completion`.
    pub completion_tokens: Option<Vec<i64>>,
}

/// Prompts, all rendered; tokens are made when a prompt is asked for.
pub struct Dataset {
    path: PathBuf,
    rows: Vec<Row>,
    dropped: u64,
    order: Order,
    format: PromptFormat,
    tokenizer: TextTokenizer,
}

/// What is opened and how.
struct Source<'a> {
    path: &'a str,
    wanted: Wanted<'a>,
    templates: Templates,
    format: PromptFormat,
    max_prompt_tokens: Option<u32>,
    limit: usize,
}

impl Dataset {
    /// Training data: shuffled anew in each epoch by (`seed`, epoch), for ever.
    pub fn open_train(
        spec: &TrainDataset,
        tokenizer: &TextTokenizer,
        seed: u64,
    ) -> Result<Self, DataError> {
        check_end(spec.completion.as_deref(), tokenizer)?;
        let source = Source {
            path: &spec.path,
            wanted: Wanted {
                split: spec.split.as_deref(),
                default_split: "train",
                subset: spec.subset.as_deref(),
            },
            templates: Templates::new(
                &spec.prompt,
                spec.completion.as_deref(),
                spec.answer.as_deref(),
            )?,
            format: spec.format,
            max_prompt_tokens: spec.max_prompt_tokens,
            limit: usize::MAX,
        };
        source.open(tokenizer, Some(seed))
    }

    /// Evaluation data: the first `limit` rows that are short enough, in their own order.
    pub fn open_evaluation(
        spec: &EvaluationDataset,
        tokenizer: &TextTokenizer,
    ) -> Result<Self, DataError> {
        check_end(spec.completion.as_deref(), tokenizer)?;
        let source = Source {
            path: &spec.path,
            wanted: Wanted {
                split: spec.split.as_deref(),
                default_split: "test",
                subset: spec.subset.as_deref(),
            },
            templates: Templates::new(
                &spec.prompt,
                spec.completion.as_deref(),
                spec.answer.as_deref(),
            )?,
            format: spec.format,
            max_prompt_tokens: spec.max_prompt_tokens,
            limit: spec.limit as usize,
        };
        source.open(tokenizer, None)
    }

    /// Rows; never 0.
    #[expect(
        clippy::len_without_is_empty,
        reason = "data without rows is refused when it is opened"
    )]
    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Rows left out because their prompts are too long.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The prompt at a position: row `order(position ÷ len)[position mod len]`.
    pub fn prompt(&self, position: u64) -> Result<Prompt, DataError> {
        let index = self.order.row(position);
        let Some(row) = self.rows.get(index as usize) else {
            return Err(DataError::Empty { path: self.path.clone() });
        };
        Ok(Prompt {
            position,
            row: row.number,
            text: row.prompt.clone(),
            tokens: row.prompt(&self.tokenizer, self.format)?,
            answer: row.answer.clone(),
            completion_tokens: row.completion(&self.tokenizer)?,
        })
    }

    /// Checks that every row fits a context of so many tokens, with its completion or, where that
    /// is sampled, one token of it.
    pub fn check_lengths(&self, context: u32) -> Result<(), DataError> {
        for row in &self.rows {
            let (place, prompt, completion) =
                (row.place.clone(), row.prompt_tokens, row.completion_tokens.max(1));
            if prompt == 0 {
                return Err(DataError::EmptyPrompt { place });
            }
            if prompt + completion > context as usize {
                return Err(DataError::TooLong { place, prompt, completion, context });
            }
        }
        Ok(())
    }

    /// Checks that `verifier` can compare with every row's answer; the first one that it cannot is
    /// named.
    pub fn check_answers(&self, verifier: &Verifier) -> Result<(), DataError> {
        for row in &self.rows {
            match row.answer.as_deref() {
                Some(answer) => verifier
                    .check_answer(answer)
                    .map_err(|source| DataError::Answer { place: row.place.clone(), source })?,
                None if verifier.needs_answers() => {
                    return Err(DataError::NoAnswerField { path: self.path.clone() });
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// A text to learn ends with the end-of-sequence token.
fn check_end(completion: Option<&str>, tokenizer: &TextTokenizer) -> Result<(), DataError> {
    if completion.is_some() && tokenizer.eos_token_id().is_none() {
        Err(DataError::NoEndToken)
    } else {
        Ok(())
    }
}

impl Source<'_> {
    fn open(self, tokenizer: &TextTokenizer, seed: Option<u64>) -> Result<Dataset, DataError> {
        let path = PathBuf::from(self.path);
        let Files { paths, rows: expected } = folder::files(&path, self.wanted)?;
        let mut reader = (0..).zip(Reader::new(paths));
        let (mut rows, mut dropped) = (Vec::new(), 0);
        while rows.len() < self.limit {
            let mut batch = self.batch(&mut reader, self.limit - rows.len())?;
            if batch.is_empty() {
                let found = rows.len() as u64 + dropped;
                if let Some(expected) = expected.filter(|expected| *expected != found) {
                    return Err(DataError::Rows { path, found, expected });
                }
                break;
            }
            rows::count_tokens(&mut batch, tokenizer, self.format)?;
            let before = batch.len();
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
                tracing::info!(path = self.path, rows = rows.len(), dropped, "opened the data")
            }
        }
        let order = Order::new(seed, rows.len() as u64);
        Ok(Dataset {
            path,
            rows,
            dropped,
            order,
            format: self.format,
            tokenizer: tokenizer.clone(),
        })
    }

    fn batch(
        &self,
        reader: &mut impl Iterator<Item = (u64, Result<(Place, read::Fields), DataError>)>,
        limit: usize,
    ) -> Result<Vec<Row>, DataError> {
        let rendered = |(number, row): (u64, Result<(Place, read::Fields), DataError>)| {
            let (place, fields) = row?;
            self.templates.row(place, number, &fields)
        };
        reader.take(limit.min(BATCH)).map(rendered).collect()
    }
}

#[cfg(test)]
mod tests;
