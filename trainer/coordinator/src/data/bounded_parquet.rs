//! Parquet files with limits: a page that decodes to more bytes than a limit is an error before it
//! is decoded. The reader decodes whole pages, one per column at a time.
//!
//! ```text
//!  page header ─ get_read ─▶ decoded size ≤ limit, sum over columns ≤ limit
//!  page data ─── get_bytes ─▶ gzip, LZ4: counted, as the reader does not stop at that size
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parking_lot::Mutex;
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, FileReader as _, Length, SerializedFileReader};

/// Limits of a file in decoded bytes.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    /// Of one page.
    pub page: u64,
    /// Of one page of every column.
    pub columns: u64,
}

impl Default for PageLimits {
    fn default() -> Self {
        Self { page: 256 << 20, columns: 1 << 30 }
    }
}

/// Largest ratio of decoded to encoded bytes of LZ4.
const LZ4_RATIO: u64 = 255;

/// Bytes of a page header that hold the type and the decoded size.
const HEADER_START: u64 = 16;

/// Bytes of a column in a row group.
struct Chunk {
    start: u64,
    end: u64,
    row_group: usize,
    compression: Compression,
}

/// The columns, known once the metadata has been read, and the decoded size of the newest page of
/// each.
struct Pages {
    limits: PageLimits,
    chunks: OnceLock<Vec<Chunk>>,
    decoded: Mutex<BTreeMap<(usize, u64), u64>>,
}

/// A file whose pages are checked.
pub struct BoundedFile {
    file: File,
    pages: Arc<Pages>,
}

/// Opens a file and reads its metadata.
pub fn open(file: File, limits: PageLimits) -> Result<SerializedFileReader<BoundedFile>> {
    let pages = Arc::new(Pages { limits, chunks: OnceLock::new(), decoded: Mutex::default() });
    let reader = SerializedFileReader::new(BoundedFile { file, pages: Arc::clone(&pages) })?;
    let _ = pages.chunks.set(chunks(reader.metadata())?);
    Ok(reader)
}

fn chunks(metadata: &ParquetMetaData) -> Result<Vec<Chunk>> {
    let mut chunks = Vec::new();
    for (row_group, group) in metadata.row_groups().iter().enumerate() {
        for column in group.columns() {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let (start, length) = (u64::try_from(start)?, u64::try_from(column.compressed_size())?);
            let end = start
                .checked_add(length)
                .ok_or_else(|| general("a column ends beyond the file".to_owned()))?;
            chunks.push(Chunk { start, end, row_group, compression: column.compression() });
        }
    }
    Ok(chunks)
}

fn general(message: String) -> ParquetError {
    ParquetError::General(message)
}

impl BoundedFile {
    fn at(&self, start: u64) -> io::Result<File> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(file)
    }

    fn chunk(&self, start: u64) -> Option<&Chunk> {
        let chunks = self.pages.chunks.get()?;
        chunks.iter().find(|chunk| (chunk.start..chunk.end).contains(&start))
    }
}

impl Pages {
    /// Checks the decoded size of a page that begins at `start`.
    fn check(&self, chunk: &Chunk, header: &[u8]) -> Result<()> {
        let size = decoded_size(header)
            .ok_or_else(|| general("a page header is not understood".to_owned()))?;
        if size > self.limits.page {
            let limit = self.limits.page;
            return Err(general(format!("a page of {size} bytes is too large: at most {limit}")));
        }
        let mut decoded = self.decoded.lock();
        decoded.retain(|(row_group, _), _| *row_group >= chunk.row_group);
        let largest = decoded.entry((chunk.row_group, chunk.start)).or_default();
        *largest = size.max(*largest);
        let sum = decoded.values().fold(0_u64, |sum, size| sum.saturating_add(*size));
        if sum > self.limits.columns {
            let limit = self.limits.columns;
            return Err(general(format!(
                "the pages of all columns are too large: {sum} bytes, at most {limit}"
            )));
        }
        Ok(())
    }

    /// Checks data whose decoder does not stop at the size in the header.
    fn check_data(&self, chunk: &Chunk, data: &Bytes) -> Result<()> {
        let limit = self.limits.page;
        let encoded = data.len() as u64;
        let is_bounded = match chunk.compression {
            Compression::GZIP(_) => {
                let mut decoder = MultiGzDecoder::new(data.as_ref()).take(limit.saturating_add(1));
                // Damaged data is reported by the reader.
                io::copy(&mut decoder, &mut io::sink()).is_ok_and(|decoded| decoded <= limit)
            }
            Compression::LZ4 => encoded.saturating_mul(LZ4_RATIO) <= limit,
            _ => encoded <= limit,
        };
        if is_bounded {
            Ok(())
        } else {
            Err(general(format!(
                "a page of {encoded} compressed bytes is damaged or too large: at most {limit} \
                 decoded bytes"
            )))
        }
    }
}

impl Length for BoundedFile {
    fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |file| file.len())
    }
}

impl ChunkReader for BoundedFile {
    type T = BufReader<File>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        if let Some(chunk) = self.chunk(start) {
            let mut header = Vec::new();
            self.at(start)?.take(HEADER_START).read_to_end(&mut header)?;
            self.pages.check(chunk, &header)?;
        }
        Ok(BufReader::new(self.at(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let available = self.len().saturating_sub(start);
        if length as u64 > available {
            return Err(general(format!("{length} bytes at {start} are beyond the file")));
        }
        let mut bytes = Vec::with_capacity(length);
        self.at(start)?.take(length as u64).read_to_end(&mut bytes)?;
        let bytes = Bytes::from(bytes);
        if let Some(chunk) = self.chunk(start) {
            self.pages.check_data(chunk, &bytes)?;
        }
        Ok(bytes)
    }
}

/// Decoded size of a page: the second field of its header, a Thrift structure in the compact
/// protocol, after the type of the page. Every writer writes both in this form.
fn decoded_size(header: &[u8]) -> Option<u64> {
    /// The next field, an integer of 32 bits.
    const NEXT_I32: u8 = 0x15;
    let (&NEXT_I32, rest) = header.split_first()? else { return None };
    let (_, rest) = varint(rest)?;
    let (&NEXT_I32, rest) = rest.split_first()? else { return None };
    let (value, _) = varint(rest)?;
    // Zigzag: odd values are negative.
    (value & 1 == 0).then_some(value >> 1)
}

/// A variable-length integer of at most five bytes, and the bytes after it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    let mut rest = bytes;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, after) = rest.split_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, after));
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::decoded_size;

    #[test]
    fn the_decoded_size_is_read_from_the_start_of_a_page_header() {
        assert_eq!(decoded_size(&[0x15, 0x00, 0x15, 0x94, 0x01, 0x15]), Some(74));
        let malformed: [&[u8]; 5] = [
            &[],
            &[0x15],
            &[0x05, 0x02, 0x00],
            &[0x15, 0x00, 0x15, 0x01],
            &[0x15, 0x00, 0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ];
        assert_eq!(malformed.map(decoded_size), [None; 5]);
    }
}
