//! Data loading: renders and shuffles the rows of a dataset and serves prompts by loader position.
//!
//! ```text
//!  file or folder ─ files, reader ─▶ fields ─ templates ─▶ rows that fit ─▶ part ──────┐
//!  (seed, block) ─ mixture ─▶ part and its position ──────────────────────────────────┤
//!  (seed, epoch) ─ row_order ─▶ permutation of the part ──────────────────────────────┴─▶ prompt
//! ```
//!
//! `prompt` is a pure function of (data, spec, seed, position), so a restarted run needs only the
//! position. Must not depend on steps or prompt groups.

mod bounded_parquet;
mod categories;
mod conversation;
mod dropped;
mod error;
mod feedback;
mod field;
mod files;
mod filters;
mod first_row;
mod location;
mod mixture;
mod open;
mod part;
mod reader;
mod row_order;
mod row_tools;
mod rows;
mod templates;
mod token_counts;

use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use dropped::{DroppedRow, FilterReason};
pub use error::DataError;
pub use feedback::{Feedback, FeedbackError, TurnFacts};
pub use files::{FileSelector, select_remote};
pub use first_row::{FirstRow, first_rows};
pub use location::RowLocation;
pub use part::Part;
pub use reader::Fields;
pub use templates::KeptFields;

use mixture::Mixture;
use rows::{Row, completion_len};

use crate::reward::Rewards;
use crate::text::{DemonstratedTurn, PromptStyle, TextTokenizer, Tools};

/// A prompt with its tokens and its reference answer or completion.
#[cfg_attr(test, derive(Default))]
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Loader position, from 0; continues across epochs.
    pub position: u64,
    /// Row number over all files of the part, from 0; blank lines are not counted.
    pub row: u64,
    /// Rendered prompt without the chat template, or the messages before the completion.
    pub text: String,
    /// Token ids, chat template included.
    pub tokens: Vec<i64>,
    /// Reference answer; `None` if the dataset has no answer field.
    pub answer: Option<String>,
    /// Names of the rewards that score its completions; all if empty.
    pub rewards: Arc<[String]>,
    /// Category of an evaluation's row.
    pub category: Option<String>,
    /// Target tokens with the end-of-sequence token; `None` if the dataset has no `completion`.
    pub completion_tokens: Option<Vec<i64>>,
    /// Turns of a demonstration after its first completion.
    pub later_turns: Vec<DemonstratedTurn>,
    /// Tokens of the chosen and the rejected completion, each with the end-of-sequence token;
    /// `None` if the dataset has no pairs.
    pub pair_tokens: Option<[Vec<i64>; 2]>,
    /// Tools that the row offers; none leaves all of the workflow.
    pub tools: Option<Tools>,
    /// Kept fields of the row, if any are kept.
    pub fields: Option<Arc<Fields>>,
    /// Fields that rewards receive, by their names in the spec; `None` without names.
    pub reward_fields: Option<Arc<Fields>>,
    /// Digest of all fields of the row, of evaluation data.
    pub row_digest: Option<String>,
}

impl Prompt {
    /// Number of tokens of the prompt, its longest given completion and later turns.
    pub fn len_with_completion(&self) -> usize {
        let (pair, completion) = (self.pair_tokens.as_ref(), self.completion_tokens.as_ref());
        self.tokens.len().saturating_add(completion_len(pair, completion, &self.later_turns))
    }
}

/// A loader position as a visit of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Index of the part of a mixture; 0 without one.
    pub part: u32,
    /// Row number over all files of the part.
    pub row: u64,
    /// Epoch of the part, from 0.
    pub epoch: u64,
}

/// Rendered rows of one or more parts. Tokenization happens on access.
pub struct Dataset {
    parts: Vec<Part>,
    /// Order of the parts; none of a single one.
    mixture: Option<Mixture>,
    style: PromptStyle,
    tokenizer: TextTokenizer,
}

impl Dataset {
    /// Number of rows, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "opening data without rows is an error")]
    pub fn len(&self) -> u64 {
        self.parts.iter().map(Part::len).sum()
    }

    /// The parts: one without a mixture.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// File or folder, of the first part.
    pub fn path(&self) -> &Path {
        self.parts.first().map_or(Path::new(""), Part::path)
    }

    /// SHA-256 of the rendered rows in file order, as hexadecimal.
    pub fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        for part in &self.parts {
            if self.mixture.is_some() {
                digest.update(part.len().to_le_bytes());
            }
            part.rows().for_each(|row| row.digest(&mut digest));
        }
        format!("{:x}", digest.finalize())
    }

    /// Returns the prompt of row `order(position ÷ len)[position mod len]` of the position's part.
    pub fn prompt(&self, position: u64) -> Result<Prompt, DataError> {
        let (part, row) = self.row(position)?;
        self.prompt_of(position, part, row)
    }

    /// The prompt of a position with the first observation of its environment at its end.
    pub fn observed(&self, position: u64, observation: &str) -> Result<Prompt, DataError> {
        let (part, row) = self.row(position)?;
        self.prompt_of(position, part, &row.observed(observation))
    }

    fn row(&self, position: u64) -> Result<(&Part, &Row), DataError> {
        let (index, at) = self.at(position);
        let row = self.parts.get(index).and_then(|part| Some((part, part.row(at)?)));
        row.ok_or_else(|| DataError::Empty { path: self.path().to_owned() })
    }

    fn prompt_of(&self, position: u64, part: &Part, row: &Row) -> Result<Prompt, DataError> {
        let tokens = row.tokens(&self.tokenizer, &self.style)?;
        Ok(Prompt {
            position,
            row: row.number,
            text: row.prompt.clone(),
            tokens: tokens.prompt,
            answer: row.answer.clone(),
            rewards: part.rewards(),
            category: row.category.clone(),
            completion_tokens: tokens.completion,
            later_turns: tokens.later_turns,
            pair_tokens: tokens.pair,
            tools: row.tools.clone(),
            fields: row.fields.clone(),
            reward_fields: row.reward_fields.clone(),
            row_digest: row.digest.clone(),
        })
    }

    /// Name of the part of a mixture that a loader position belongs to.
    pub fn part_name(&self, position: u64) -> Option<&str> {
        self.mixture.as_ref()?;
        self.parts.get(self.at(position).0)?.name()
    }

    /// The row that a loader position visits.
    pub fn visit(&self, position: u64) -> Option<Visit> {
        let (index, at) = self.at(position);
        let part = self.parts.get(index)?;
        let (row, epoch) = (part.row(at)?.number, at.checked_div(part.len())?);
        Some(Visit { part: index as u32, row, epoch })
    }

    /// Part of a position, and the position in the part.
    fn at(&self, position: u64) -> (usize, u64) {
        self.mixture.as_ref().map_or((0, position), |mixture| mixture.at(position))
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.parts.iter().flat_map(Part::rows)
    }

    /// How prompts and later turns become tokens.
    pub fn style(&self) -> &PromptStyle {
        &self.style
    }

    /// Checks that every prompt fits the context with its completion, or with one token if
    /// completions are sampled.
    pub fn check_lengths(&self, context: u32) -> Result<(), DataError> {
        self.rows().try_for_each(|row| row.check_length(context))
    }

    /// Drops rows whose reference answers the rewards cannot compare. Fails if they are more than
    /// `share` of the rows of a part.
    pub fn drop_unusable(&mut self, rewards: &Rewards, share: f64) -> Result<(), DataError> {
        self.parts.iter_mut().try_for_each(|part| part.drop_unusable(rewards, share))
    }
}

#[cfg(test)]
mod tests;
