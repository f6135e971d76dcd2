//! Rows that are dropped because no completion could match their reference answers.

use serde::Serialize;

use crate::data::location::RowLocation;
use crate::reward::UnusableAnswer;

/// A dropped row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedRow {
    pub location: RowLocation,
    /// Reference answer.
    pub answer: String,
    pub source: UnusableAnswer,
}

/// A line of `dropped-rows.jsonl`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DroppedRowLine<'a> {
    /// `train`, `evaluation` or the name of a suite.
    dataset: &'a str,
    file: String,
    /// Line of a JSONL file, row of a Parquet file, from 1.
    number: u64,
    answer: &'a str,
    reward: &'a str,
    reason: &'a str,
}

impl DroppedRow {
    pub fn line<'a>(&'a self, dataset: &'a str) -> DroppedRowLine<'a> {
        DroppedRowLine {
            dataset,
            file: self.location.path.display().to_string(),
            number: self.location.number,
            answer: &self.answer,
            reward: &self.source.reward,
            reason: self.source.reason,
        }
    }
}
