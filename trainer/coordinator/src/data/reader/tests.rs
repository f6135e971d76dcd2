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
