//! Tests of limits of rows and files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::{PageLimits, ReadLimits, RowReader};

fn limits() -> ReadLimits {
    let pages = PageLimits { page: 100_000, columns: 150_000 };
    ReadLimits { row: 90_000, expansion: 10, spare: 1_000_000, pages }
}

/// Number of rows, or the error as one line with FILE for the path.
fn read(path: &Path) -> Result<usize, String> {
    let rows: Result<Vec<_>, _> = RowReader::new(vec![path.to_owned()], limits()).collect();
    rows.map(|rows| rows.len())
        .map_err(|error| crate::error_line(&error).replace(&path.display().to_string(), "FILE"))
}

fn lines(content: &str) -> Result<usize, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    fs::write(&path, content).unwrap();
    read(&path)
}

/// Writes `columns` columns with a text of this length in every one of `rows` rows.
fn parquet(
    columns: usize,
    length: usize,
    rows: usize,
    codec: Compression,
) -> Result<usize, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let fields: Vec<String> =
        (0..columns).map(|column| format!("REQUIRED BYTE_ARRAY c{column} (UTF8);")).collect();
    let fields = fields.concat();
    let schema = Arc::new(parse_message_type(&format!("message m {{ {fields} }}")).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(codec).build());
    let file = fs::File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let text = ByteArray::from("a".repeat(length).as_str());
    while let Some(mut column) = group.next_column().unwrap() {
        let values = vec![text.clone(); rows];
        column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    read(&path)
}

#[test]
fn long_lines_and_deeply_nested_rows_are_errors() {
    assert_eq!(lines("{\"a\": 1}\n\n{\"a\": 2}"), Ok(2));
    let endless = format!("{{\"a\": 1}}\n{}", "x".repeat(200_000));
    assert_eq!(lines(&endless).unwrap_err(), "FILE line 2 is too large: more than 90000 bytes");
    let nested = format!("{{\"a\": {}", "[".repeat(80_000));
    let error = lines(&nested).unwrap_err();
    assert!(error.contains("recursion limit exceeded"), "{error}");
}

#[test]
fn parquet_files_that_decode_to_far_more_than_their_size_are_errors() {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4_RAW,
    ];
    for codec in codecs {
        assert_eq!(parquet(2, 1000, 5, codec), Ok(5), "{codec:?}");
        let page = parquet(1, 200_000, 1, codec).unwrap_err();
        let expected = "is too large: at most 100000";
        assert!(page.contains(expected), "{codec:?}: {page}");
        let columns = parquet(4, 50_000, 1, codec).unwrap_err();
        let expected = "the pages of all columns are too large";
        assert!(columns.contains(expected), "{codec:?}: {columns}");
    }
    let row = parquet(1, 95_000, 1, Compression::SNAPPY).unwrap_err();
    assert_eq!(row, "FILE row 1 is too large: more than 90000 bytes");
    let equal = parquet(1, 50_000, 1000, Compression::SNAPPY).unwrap_err();
    assert!(equal.starts_with("the rows of FILE are too large"), "{equal}");
}

#[test]
fn files_of_other_formats_are_errors_that_name_the_format() {
    let named = |name: &str, content: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        read(&path)
    };
    let format = "the data at FILE does not have one JSON object per line: formats are .jsonl and \
                  .parquet";
    assert_eq!(named("a.csv", "question,answer\n1+1,2\n").unwrap_err(), format);
    let array = "the data at FILE is a JSON array: write one object per line";
    for content in ["[{\"a\": 1}]", "[\n{\"a\": 1}\n]"] {
        assert_eq!(named("a.json", content).unwrap_err(), array);
    }
    let mark = "the data at FILE starts with a byte order mark: save it without";
    assert_eq!(named("a.jsonl", "\u{feff}{\"a\": 1}\n").unwrap_err(), mark);
    assert_eq!(named("a.txt", "{\"a\": 1}\n{\"a\": 2}\n"), Ok(2));
}

#[test]
fn syntax_errors_of_a_line_have_their_column_and_one_line_number() {
    let truncated = "FILE line 2 is not a JSON object: the line is truncated, or its object \
                     continues on the next line: it ends at column 5";
    assert_eq!(lines("{\"a\": 1}\n{\"a\": \n").unwrap_err(), truncated);
    let comma = "FILE line 2 is not a JSON object: trailing comma at column 9";
    assert_eq!(lines("{\"a\": 1}\n{\"a\": 1,}\n").unwrap_err(), comma);
}
