//! Rows of one source, and their order.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::dropped::{DroppedRow, FilteredRow};
use crate::data::error::DataError;
use crate::data::location::RowLocation;
use crate::data::row_order::RowOrder;
use crate::data::rows::Row;
use crate::reward::Rewards;

/// A part of a dataset.
pub struct Part {
    /// `train` or `evaluation`, and `/NAME` of a part of a mixture or of a suite.
    pub(super) label: String,
    pub(super) path: PathBuf,
    /// Names of the fields of the first row.
    pub(super) names: Vec<String>,
    pub(super) rows: Vec<Row>,
    pub(super) filtered: Vec<FilteredRow>,
    pub(super) unusable: Vec<DroppedRow>,
    pub(super) seed: Option<u64>,
    pub(super) order: RowOrder,
    /// Names of the rewards that score completions; all if empty.
    pub(super) rewards: Arc<[String]>,
}

impl Part {
    /// Name in files and messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Name in a mixture.
    pub fn name(&self) -> Option<&str> {
        self.label.split_once('/').map(|(_, name)| name)
    }

    /// Number of rows, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "opening data without rows is an error")]
    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// File or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows that the filters of the spec dropped.
    pub fn filtered(&self) -> &[FilteredRow] {
        &self.filtered
    }

    /// Rows that [`Self::drop_unusable`] dropped.
    pub fn unusable(&self) -> &[DroppedRow] {
        &self.unusable
    }

    /// The number of pairs whose chosen and rejected completion are equal, and the first one.
    pub fn equal_pairs(&self) -> Option<(u64, &RowLocation)> {
        let is_equal = |row: &&Row| row.pair.as_ref().is_some_and(|[one, other]| one == other);
        let mut equal = self.rows.iter().filter(is_equal);
        let first = equal.next()?;
        Some(((equal.count() as u64).saturating_add(1), &first.location))
    }

    /// Fails if chosen and rejected are equal in all pairs.
    pub(super) fn check_pairs(&self) -> Result<(), DataError> {
        match self.equal_pairs() {
            Some((pairs, first)) if pairs == self.len() => {
                Err(DataError::EqualPairs { pairs, location: first.clone() })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn rewards(&self) -> Arc<[String]> {
        Arc::clone(&self.rewards)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }

    /// The row at a position of this part.
    pub(super) fn row(&self, position: u64) -> Option<&Row> {
        self.rows.get(self.order.row(position) as usize)
    }

    /// Drops rows whose reference answers the rewards cannot compare. Fails if they are more than
    /// `share` of the rows.
    pub(super) fn drop_unusable(&mut self, rewards: &Rewards, share: f64) -> Result<(), DataError> {
        let rewards = rewards.named(&self.rewards);
        let before = self.rows.len();
        let mut kept = Vec::with_capacity(before);
        for row in std::mem::take(&mut self.rows) {
            match row.answer.as_deref() {
                Some(answer) => match rewards.check_answer(answer, row.has_structured_answer) {
                    Ok(()) => kept.push(row),
                    Err(source) => self.unusable.push(DroppedRow {
                        location: row.location,
                        answer: answer.to_owned(),
                        source,
                    }),
                },
                None if rewards.needs_answers() => {
                    return Err(DataError::NoAnswerField { path: self.path.clone() });
                }
                None => kept.push(row),
            }
        }
        let unusable = self.unusable.len();
        if let Some(first) = self.unusable.first()
            && (kept.is_empty() || unusable as f64 > share * before as f64)
        {
            return Err(DataError::Unusable {
                path: self.path.clone(),
                unusable,
                rows: before,
                share,
                location: first.location.clone(),
                source: Box::new(first.source.clone()),
            });
        }
        self.order = RowOrder::new(self.seed, kept.len() as u64);
        self.rows = kept;
        Ok(())
    }
}
