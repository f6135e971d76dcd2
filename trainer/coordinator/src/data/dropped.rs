//! Rows that are dropped: by a filter of the spec, or because no completion could match their
//! reference answers.

use serde::Serialize;

use crate::data::location::RowLocation;
use crate::reward::UnusableAnswer;

/// A row with an unusable reference answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedRow {
    pub location: RowLocation,
    /// Reference answer.
    pub answer: String,
    pub source: UnusableAnswer,
}

/// A row that a filter dropped.
#[derive(Clone, Debug, PartialEq)]
pub struct FilteredRow {
    pub location: RowLocation,
    pub reason: FilterReason,
}

/// Why a filter dropped a row.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FilterReason {
    #[error("the prompt has {tokens} tokens, more than maxPromptTokens = {limit}")]
    Long { tokens: usize, limit: u32 },
    #[error("prompt and completion have {tokens} tokens, more than maxTokens = {limit}")]
    LongTogether { tokens: usize, limit: u32 },
    #[error("the prompt has {tokens} tokens, fewer than minPromptTokens = {limit}")]
    Short { tokens: usize, limit: u32 },
    #[error("the pass rate {rate} is outside passRate, {min} to {max}")]
    PassRate { rate: f64, min: f64, max: f64 },
}

/// A line of `dropped-rows.jsonl`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DroppedRowLine<'a> {
    /// `train` or `evaluation`, and `/NAME` of a part of a mixture or of a suite.
    dataset: &'a str,
    file: String,
    /// Line of a JSONL file, row of a Parquet file, from 1.
    number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reward: Option<&'a str>,
    reason: String,
}

impl DroppedRow {
    pub fn line<'a>(&'a self, dataset: &'a str) -> DroppedRowLine<'a> {
        DroppedRowLine {
            dataset,
            file: self.location.path.display().to_string(),
            number: self.location.number,
            answer: Some(&self.answer),
            reward: Some(&self.source.reward),
            reason: self.source.reason.to_owned(),
        }
    }
}

impl FilteredRow {
    pub fn line<'a>(&'a self, dataset: &'a str) -> DroppedRowLine<'a> {
        DroppedRowLine {
            dataset,
            file: self.location.path.display().to_string(),
            number: self.location.number,
            answer: None,
            reward: None,
            reason: self.reason.to_string(),
        }
    }
}
