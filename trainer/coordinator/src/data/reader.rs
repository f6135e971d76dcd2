//! Row reader: streams rows of JSONL and Parquet files as JSON objects with their locations.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use crate::data::bounded_parquet::{self, PageLimits};
use crate::data::error::{DataError, LineError};
use crate::data::location::RowLocation;

pub type Fields = Map<String, Value>;

/// Start of a file that an editor saved with the encoding "UTF-8 with BOM".
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
/// Extensions of files with one object per line. Others are read in the same way if they have one.
const EXTENSIONS_OF_LINES: [&str; 3] = ["jsonl", "json", "ndjson"];

/// Limits of rows and files.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes of a line, or of the values of a Parquet row.
    pub row: u64,
    /// Bytes of the values of all rows of a Parquet file, in multiples of the size of the file.
    pub expansion: u64,
    /// Added to that multiple.
    pub spare: u64,
    pub pages: PageLimits,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { row: 64 << 20, expansion: 256, spare: 1 << 30, pages: PageLimits::default() }
    }
}

/// Reads files in sequence and skips blank lines.
pub struct RowReader {
    files: std::vec::IntoIter<PathBuf>,
    open: Option<OpenFile>,
    limits: ReadLimits,
}

struct OpenFile {
    path: Arc<Path>,
    number: u64,
    rows: Rows,
    limits: ReadLimits,
    /// Bytes that the remaining rows of a Parquet file may have.
    budget: u64,
}

enum Rows {
    Lines(BufReader<File>),
    Parquet(RowIter<'static>),
}

impl RowReader {
    /// Opens files lazily.
    pub fn new(files: Vec<PathBuf>, limits: ReadLimits) -> Self {
        Self { files: files.into_iter(), open: None, limits }
    }
}

impl Iterator for RowReader {
    type Item = Result<(RowLocation, Fields), DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(open) = &mut self.open {
                match open.next().transpose() {
                    Some(row) => return Some(row),
                    None => self.open = None,
                }
            }
            match OpenFile::new(&self.files.next()?, self.limits) {
                Ok(open) => self.open = Some(open),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl OpenFile {
    fn new(path: &Path, limits: ReadLimits) -> Result<Self, DataError> {
        let unreadable = |source| DataError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        let budget = size.saturating_mul(limits.expansion).saturating_add(limits.spare);
        let parquet =
            path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("parquet"));
        let rows = if parquet {
            let reader = bounded_parquet::open(file, limits.pages)
                .map_err(|source| DataError::Parquet { path: path.to_owned(), source })?;
            Rows::Parquet(RowIter::from_file_into(Box::new(reader)))
        } else {
            Rows::Lines(BufReader::new(file))
        };
        Ok(Self { path: Arc::from(path), number: 0, rows, limits, budget })
    }

    fn location(&self) -> RowLocation {
        let unit = if matches!(self.rows, Rows::Lines(_)) { "line" } else { "row" };
        RowLocation { path: Arc::clone(&self.path), unit, number: self.number }
    }

    fn next(&mut self) -> Result<Option<(RowLocation, Fields)>, DataError> {
        let fields = match &mut self.rows {
            Rows::Parquet(rows) => {
                let row = rows.next().transpose().map_err(|source| DataError::Parquet {
                    path: self.path.to_path_buf(),
                    source,
                })?;
                self.number = self.number.saturating_add(1);
                let fields = row.as_ref().map(object);
                self.spend(fields.as_ref())?;
                fields
            }
            Rows::Lines(_) => self.line()?,
        };
        Ok(fields.map(|fields| (self.location(), fields)))
    }

    /// Subtracts the size of a row of a Parquet file from its budget. A few bytes of a compressed
    /// file can stand for any number of equal rows.
    fn spend(&mut self, fields: Option<&Fields>) -> Result<(), DataError> {
        let size = fields.map_or(0, |fields| fields.values().map(size).sum::<u64>());
        let limit = self.limits.row;
        if size > limit {
            return Err(DataError::LongRow { location: self.location(), limit });
        }
        match self.budget.checked_sub(size) {
            Some(rest) => self.budget = rest,
            None => return Err(DataError::Expansion { path: self.path.to_path_buf() }),
        }
        Ok(())
    }

    fn line(&mut self) -> Result<Option<Fields>, DataError> {
        let Rows::Lines(file) = &mut self.rows else { return Ok(None) };
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let limit = self.limits.row;
            let read = Read::by_ref(file)
                .take(limit.saturating_add(1))
                .read_until(b'\n', &mut bytes)
                .map_err(|source| DataError::Read { path: self.path.to_path_buf(), source })?;
            if read == 0 {
                return Ok(None);
            }
            self.number = self.number.saturating_add(1);
            if read as u64 > limit {
                return Err(DataError::LongRow { location: self.location(), limit });
            }
            if !bytes.iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        serde_json::from_slice(bytes.trim_ascii_end()).map(Some).map_err(|error| {
            match self.problem(&bytes) {
                Some(problem) => DataError::Format { path: self.path.to_path_buf(), problem },
                None => {
                    DataError::Json { location: self.location(), source: LineError::new(&error) }
                }
            }
        })
    }

    /// What is wrong with the file, by its first line.
    fn problem(&self, line: &[u8]) -> Option<&'static str> {
        if self.number > 1 {
            return None;
        }
        let is_of_lines = self.path.extension().is_some_and(|extension| {
            EXTENSIONS_OF_LINES.iter().any(|known| extension.eq_ignore_ascii_case(known))
        });
        if line.starts_with(BYTE_ORDER_MARK) {
            Some("starts with a byte order mark: save it without")
        } else if line.trim_ascii_start().starts_with(b"[") {
            Some("is a JSON array: write one object per line")
        } else if !is_of_lines {
            Some("does not have one JSON object per line: formats are .jsonl and .parquet")
        } else {
            None
        }
    }
}

/// Approximate size of a value in memory.
fn size(value: &Value) -> u64 {
    let content = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => {
            let field =
                |(name, value): (&String, &Value)| size(value).saturating_add(name.len() as u64);
            fields.iter().map(field).sum()
        }
    };
    content.saturating_add(size_of::<Value>() as u64)
}

fn object(row: &Row) -> Fields {
    row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
}

/// Converts a Parquet value to JSON. Dates and decimals become strings; non-finite numbers and
/// bytes that are not UTF-8 become null.
fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::from(*value),
        Field::Byte(value) => Value::from(*value),
        Field::Short(value) => Value::from(*value),
        Field::Int(value) => Value::from(*value),
        Field::Long(value) => Value::from(*value),
        Field::UByte(value) => Value::from(*value),
        Field::UShort(value) => Value::from(*value),
        Field::UInt(value) => Value::from(*value),
        Field::ULong(value) => Value::from(*value),
        Field::Float16(value) => Value::from(value.to_f64()),
        // Through its shortest decimal text: a 32-bit 0.1 becomes 0.1, not 0.10000000149.
        Field::Float(value) => Value::from(value.to_string().parse::<f64>().unwrap_or(f64::NAN)),
        Field::Double(value) => Value::from(*value),
        Field::Str(text) => Value::from(text.as_str()),
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data()).map_or(Value::Null, Value::from),
        Field::Group(row) => Value::Object(object(row)),
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(value).collect()),
        Field::MapInternal(map) => Value::Object(
            map.entries().iter().map(|(key, item)| (key_text(key), value(item))).collect(),
        ),
        other => Value::from(other.to_string()),
    }
}

fn key_text(key: &Field) -> String {
    if let Field::Str(text) = key { text.clone() } else { key.to_string() }
}

#[cfg(test)]
mod tests;
