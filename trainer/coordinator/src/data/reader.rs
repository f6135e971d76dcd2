//! Row reader: streams rows of JSONL and Parquet files as JSON objects with their locations.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::file::reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use crate::data::error::DataError;
use crate::data::location::RowLocation;

pub type Fields = Map<String, Value>;

/// Reads files in sequence and skips blank lines.
pub struct RowReader {
    files: std::vec::IntoIter<PathBuf>,
    open: Option<OpenFile>,
}

struct OpenFile {
    path: Arc<Path>,
    number: u64,
    rows: Rows,
}

enum Rows {
    Lines(BufReader<File>),
    Parquet(RowIter<'static>),
}

impl RowReader {
    /// Opens files lazily.
    pub fn new(files: Vec<PathBuf>) -> Self {
        Self { files: files.into_iter(), open: None }
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
            match OpenFile::new(&self.files.next()?) {
                Ok(open) => self.open = Some(open),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl OpenFile {
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
                self.number += 1;
                row.as_ref().map(object)
            }
            Rows::Lines(_) => self.line()?,
        };
        Ok(fields.map(|fields| (self.location(), fields)))
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
            .map_err(|source| DataError::Json { location: self.location(), source })
    }
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
