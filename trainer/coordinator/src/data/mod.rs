//! The prompts of a run: which row of a JSONL file stands at which position, and as which tokens.
//!
//! ```text
//!  file ── rows ─▶ rendered rows (text in memory) ─┐
//!  (seed, epoch) ── order ─▶ permutation ──────────┴─▶ prompt(position)
//! ```
//!
//! A position's prompt is a pure function of (file, seed, position): nothing here remembers what was asked before. It must not know steps or groups.

mod error;
mod order;
mod rows;

use std::path::PathBuf;

use rljob_crds::data::{EvaluationDataset, PromptFormat, TrainDataset};

pub use error::DataError;
use order::Order;
use rows::{Row, Templates};

use crate::reward::Verifier;
use crate::text::TextTokenizer;

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The loader position it was asked for, from 0; grows over epochs.
    pub position: u64,
    /// Row of the file, from 0, blank lines aside.
    pub row: u64,
    /// The rendered prompt, before any chat template.
    pub text: String,
    /// Its tokens, chat template included.
    pub tokens: Vec<i64>,
    /// The reference answer; none if the dataset names no answer field.
    pub answer: Option<String>,
    /// The text to learn as tokens, the end-of-sequence token last; none if the dataset has no `completion`.
    pub completion_tokens: Option<Vec<i64>>,
}

/// A file of prompts, all rendered; tokens are made when a prompt is asked for.
pub struct Dataset {
    path: PathBuf,
    rows: Vec<Row>,
    order: Order,
    format: PromptFormat,
    tokenizer: TextTokenizer,
}

impl Dataset {
    /// Training data: shuffled anew in each epoch by (`seed`, epoch), for ever.
    pub fn open_train(spec: &TrainDataset, tokenizer: &TextTokenizer, seed: u64) -> Result<Self, DataError> {
        let templates = Templates::new(&spec.prompt, spec.completion.as_deref(), spec.answer.as_deref())?;
        if spec.completion.is_some() && tokenizer.eos_token_id().is_none() {
            return Err(DataError::NoEndToken);
        }
        Self::open(PathBuf::from(&spec.path), &templates, spec.format, tokenizer, Some(seed), usize::MAX)
    }

    /// Evaluation data: the first `limit` rows in the file's order.
    pub fn open_evaluation(spec: &EvaluationDataset, tokenizer: &TextTokenizer) -> Result<Self, DataError> {
        let templates = Templates::new(&spec.prompt, None, Some(&spec.answer))?;
        Self::open(PathBuf::from(&spec.path), &templates, spec.format, tokenizer, None, spec.limit as usize)
    }

    fn open(path: PathBuf, templates: &Templates, format: PromptFormat, tokenizer: &TextTokenizer, seed: Option<u64>, limit: usize) -> Result<Self, DataError> {
        let rows = rows::read(&path, templates, limit)?;
        let order = Order::new(seed, rows.len() as u64);
        let dataset = Self { path, rows, order, format, tokenizer: tokenizer.clone() };
        // What is wrong with the chat template is wrong with every row: found now, not at the first step.
        dataset.prompt(0)?;
        Ok(dataset)
    }

    /// Rows; never 0.
    #[expect(clippy::len_without_is_empty, reason = "an empty file is refused when it is opened")]
    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// The prompt at a position: row `order(position ÷ len)[position mod len]`.
    pub fn prompt(&self, position: u64) -> Result<Prompt, DataError> {
        let index = self.order.row(position);
        let Some(row) = self.rows.get(index as usize) else {
            return Err(DataError::Empty { path: self.path.clone() });
        };
        let failed = |source| DataError::Tokens { path: self.path.clone(), line: row.line, source };
        let completion_tokens = match &row.completion {
            None => None,
            Some(text) => {
                let mut tokens = self.tokenizer.encode(text).map_err(failed)?;
                tokens.extend(self.tokenizer.eos_token_id());
                Some(tokens)
            }
        };
        Ok(Prompt {
            position,
            row: index,
            text: row.prompt.clone(),
            tokens: self.tokenizer.encode_prompt(&row.prompt, self.format).map_err(failed)?,
            answer: row.answer.clone(),
            completion_tokens,
        })
    }

    /// Checks that `verifier` can compare with every row's answer; the first one that it cannot is named.
    pub fn check_answers(&self, verifier: &Verifier) -> Result<(), DataError> {
        for row in &self.rows {
            let answer = row.answer.as_deref().ok_or_else(|| DataError::NoAnswerField { path: self.path.clone() })?;
            verifier.check_answer(answer).map_err(|source| DataError::Answer { path: self.path.clone(), line: row.line, source })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
