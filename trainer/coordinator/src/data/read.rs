//! Rows of JSONL and Parquet files as JSON objects, one at a time, each with its place.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::file::reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use super::DataError;

/// Where a row stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: Arc<Path>,
    /// `line` of a JSONL file, `row` of a Parquet file.
    pub unit: &'static str,
    /// From 1.
    pub number: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.path.display(), self.unit, self.number)
    }
}

/// A row's fields.
pub type Fields = Map<String, Value>;

/// Reads files one after the other. Blank lines are not rows.
pub struct Reader {
    files: std::vec::IntoIter<PathBuf>,
    open: Option<Open>,
}

struct Open {
    path: Arc<Path>,
    number: u64,
    rows: Rows,
}

enum Rows {
    Lines(BufReader<File>),
    Parquet(RowIter<'static>),
}

impl Reader {
    /// Nothing is opened before the first row is asked for.
    pub fn new(files: Vec<PathBuf>) -> Self {
        Self { files: files.into_iter(), open: None }
    }
}

impl Iterator for Reader {
    type Item = Result<(Place, Fields), DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(open) = &mut self.open {
                match open.next().transpose() {
                    Some(row) => return Some(row),
                    None => self.open = None,
                }
            }
            match Open::new(&self.files.next()?) {
                Ok(open) => self.open = Some(open),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Open {
    fn new(path: &Path) -> Result<Self, DataError> {
        let file =
            File::open(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
        let parquet =
            path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("parquet"));
        let rows = if parquet {
            let reader = SerializedFileReader::new(file)
                .map_err(|source| DataError::Parquet { path: path.to_owned(), source })?;
            Rows::Parquet(reader.into_iter())
        } else {
            Rows::Lines(BufReader::new(file))
        };
        Ok(Self { path: Arc::from(path), number: 0, rows })
    }

    fn place(&self) -> Place {
        let unit = if matches!(self.rows, Rows::Lines(_)) { "line" } else { "row" };
        Place { path: Arc::clone(&self.path), unit, number: self.number }
    }

    fn next(&mut self) -> Result<Option<(Place, Fields)>, DataError> {
        let fields = match &mut self.rows {
            Rows::Parquet(rows) => {
                let row = rows.next().transpose().map_err(|source| DataError::Parquet {
                    path: self.path.to_path_buf(),
                    source,
                })?;
                self.number += 1;
                row.as_ref().map(object)
            }
            Rows::Lines(_) => self.line()?,
        };
        Ok(fields.map(|fields| (self.place(), fields)))
    }

    fn line(&mut self) -> Result<Option<Fields>, DataError> {
        let Rows::Lines(file) = &mut self.rows else { return Ok(None) };
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let read = file
                .read_until(b'\n', &mut bytes)
                .map_err(|source| DataError::Read { path: self.path.to_path_buf(), source })?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if !bytes.iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| DataError::Json { place: self.place(), source })
    }
}

fn object(row: &Row) -> Fields {
    row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
}

/// A Parquet value as JSON. What JSON has no word for (dates, decimals) is its text; bytes that are
/// no text, and numbers that are none, are null.
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
        // By way of its shortest text: 0.1 as 32 bits is 0.1, not 0.10000000149.
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
