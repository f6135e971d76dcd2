//! Categories of evaluation rows: bounds on their number and length, since each one is reported.

use std::collections::BTreeSet;
use std::path::Path;

use crate::data::error::DataError;
use crate::data::rows::Row;

/// Most categories of a dataset.
const MAX_CATEGORIES: usize = 100;
/// Longest category in bytes.
const MAX_BYTES: usize = 128;

/// Checks the categories of the rows of the data at `path`.
pub fn check(rows: &[Row], path: &Path) -> Result<(), DataError> {
    let mut found = BTreeSet::new();
    for row in rows {
        let Some(category) = &row.category else { continue };
        if category.len() > MAX_BYTES {
            let location = row.location.clone();
            return Err(DataError::LongCategory { location, limit: MAX_BYTES });
        }
        found.insert(category);
        if found.len() > MAX_CATEGORIES {
            return Err(DataError::Categories { path: path.to_owned(), limit: MAX_CATEGORIES });
        }
    }
    Ok(())
}
