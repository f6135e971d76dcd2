//! Row locations for errors.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// File and line or row number of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLocation {
    pub path: Arc<Path>,
    /// `line` of a JSONL file, `row` of a Parquet file.
    pub unit: &'static str,
    /// From 1.
    pub number: u64,
}

impl fmt::Display for RowLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.path.display(), self.unit, self.number)
    }
}
