//! Reader of the JSONL files of a run directory while they grow. An incomplete last line is left
//! for the next read.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Longest line that is parsed; longer ones are malformed.
const MAX_LINE: u64 = 64 << 20;
/// Bytes of the start of a file by which [`Tail`] recognizes it: those of `traces.jsonl` have the
/// step of its first line.
const START: usize = 64;
/// Part of a file that [`newest`] reads.
const NEWEST_WITHIN: u64 = 1 << 20;

/// Follows a file of lines. A file that has started over is read from its start: one that is
/// shorter than what was read of it, or whose first line is a different one.
#[derive(Clone, Debug)]
pub struct Tail {
    path: PathBuf,
    /// Length of the complete lines read so far.
    offset: u64,
    /// Up to [`START`] bytes of the first line; empty before it has been read.
    start: Vec<u8>,
}

impl Tail {
    /// Reads from the start of the file, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, start: Vec::new() }
    }

    /// Lines completed since the last call.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn read<T: DeserializeOwned>(&mut self) -> io::Result<Vec<T>> {
        let mut lines = Vec::new();
        self.each(|line| {
            lines.push(line);
            Ok(())
        })?;
        Ok(lines)
    }

    /// The first `count` of the lines completed since the last call; the next call continues after
    /// them.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_some<T: DeserializeOwned>(&mut self, count: usize) -> io::Result<Vec<T>> {
        let mut lines = Vec::new();
        self.visit(|_, line| {
            lines.push(line);
            let is_full = lines.len() >= count;
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(lines)
    }

    /// Calls `visit` with each line completed since the last call. Malformed lines are skipped with
    /// a warning.
    ///
    /// # Errors
    /// The file exists and cannot be read, or `visit` fails.
    pub fn each<T: DeserializeOwned>(
        &mut self,
        mut visit: impl FnMut(T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.each_at(|_, value| visit(value))
    }

    /// As [`Self::each`], with the positions of the lines in the file.
    ///
    /// # Errors
    /// As [`Self::each`].
    pub fn each_at<T: DeserializeOwned>(
        &mut self,
        mut visit: impl FnMut(Range<u64>, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.visit(|range, line| visit(range, line).map(ControlFlow::Continue))
    }

    /// Calls `visit` with lines until it breaks.
    fn visit<T: DeserializeOwned>(
        &mut self,
        mut visit: impl FnMut(Range<u64>, T) -> io::Result<ControlFlow<()>>,
    ) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        if self.has_started_over(&mut file)? {
            self.offset = 0;
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let (mut reader, mut line) = (BufReader::new(file), Vec::new());
        loop {
            line.clear();
            let length = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? as u64;
            let rest = if length == MAX_LINE && !line.ends_with(b"\n") {
                reader.skip_until(b'\n')? as u64
            } else if line.ends_with(b"\n") {
                0
            } else {
                return Ok(()); // incomplete
            };
            let start = self.offset;
            if start == 0 {
                self.start = line.iter().take(START).copied().collect();
            }
            self.offset = start.saturating_add(length).saturating_add(rest);
            if let Some(line) = self.parse(&line)
                && visit(start..self.offset, line)?.is_break()
            {
                return Ok(());
            }
        }
    }

    /// Whether the lines read so far were replaced. The length alone does not tell: the file may
    /// have grown beyond the offset since.
    fn has_started_over(&self, file: &mut File) -> io::Result<bool> {
        let mut start = Vec::new();
        file.by_ref().take(self.start.len() as u64).read_to_end(&mut start)?;
        Ok(start != self.start || file.metadata()?.len() < self.offset)
    }

    fn parse<T: DeserializeOwned>(&self, line: &[u8]) -> Option<T> {
        if line == b"\n" {
            return None;
        }
        serde_json::from_slice(line)
            .inspect_err(|error| {
                tracing::warn!(path = %self.path.display(), %error, "skipped a malformed line");
            })
            .ok()
    }
}

/// The newest complete line of a file; `None` without one. Reads the end of the file only.
///
/// # Errors
/// The file exists and cannot be read.
pub fn newest<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let length = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?.len(),
    };
    let mut end = Vec::new();
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(length.saturating_sub(NEWEST_WITHIN)))?;
    file.take(NEWEST_WITHIN).read_to_end(&mut end)?;
    let complete = end.iter().rposition(|byte| *byte == b'\n').unwrap_or_default();
    let mut lines = end.get(..complete).unwrap_or_default().rsplit(|byte| *byte == b'\n');
    Ok(lines.find_map(|line| serde_json::from_slice(line).ok()))
}

/// A series of bounded length: of many values, every second, fourth, … is kept, and the last.
#[derive(Debug)]
pub struct Thinned<T> {
    kept: Vec<T>,
    last: Option<T>,
    stride: u64,
    seen: u64,
}

impl<T> Default for Thinned<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), last: None, stride: 1, seen: 0 }
    }
}

impl<T> Thinned<T> {
    /// Most values that are kept.
    pub const MAX: usize = 4096;

    /// Adds the next value.
    pub fn push(&mut self, value: T) {
        let previous = self.last.replace(value);
        if let Some(previous) = previous {
            if self.seen.is_multiple_of(self.stride) {
                self.kept.push(previous);
            }
            self.seen = self.seen.saturating_add(1);
        }
        if self.kept.len() >= Self::MAX {
            let mut is_kept = false;
            self.kept.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.stride = self.stride.saturating_mul(2);
        }
    }

    /// Number of values that were added.
    pub fn count(&self) -> u64 {
        self.seen.saturating_add(u64::from(self.last.is_some()))
    }

    /// The last value.
    pub fn last(&self) -> Option<&T> {
        self.last.as_ref()
    }

    /// The values, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.kept.iter().chain(&self.last)
    }

    /// At most `count` of the values, evenly, and the last.
    pub fn at_most(&self, count: usize) -> Vec<&T> {
        evenly(self.iter().collect(), count)
    }
}

/// At most `count` of the values, evenly, and the last.
pub fn evenly<T>(values: Vec<T>, count: usize) -> Vec<T> {
    if values.len() <= count {
        return values;
    }
    let stride = values.len().div_ceil(count.saturating_sub(1).max(1));
    let last = values.len().saturating_sub(1);
    let is_kept = |index: usize| index.is_multiple_of(stride) || index == last;
    values.into_iter().enumerate().filter(|(index, _)| is_kept(*index)).map(|it| it.1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn each_complete_line_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.jsonl");
        let mut tail = Tail::new(path.clone());
        assert_eq!(tail.read::<u32>().unwrap(), Vec::<u32>::new());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"1\n2\n3").unwrap();
        assert_eq!(tail.read::<u32>().unwrap(), [1, 2]);
        file.write_all(b"4\nnot a number\n5\n").unwrap();
        assert_eq!(tail.read::<u32>().unwrap(), [34, 5]);
        assert_eq!(Tail::new(path.clone()).read::<u32>().unwrap(), [1, 2, 34, 5]);
        let mut in_parts = Tail::new(path.clone());
        assert_eq!(in_parts.read_some::<u32>(3).unwrap(), [1, 2, 34]);
        assert_eq!(in_parts.read_some::<u32>(3).unwrap(), [5]);
        assert_eq!(in_parts.read_some::<u32>(3).unwrap(), Vec::<u32>::new());
        fs::write(&path, "7\n").unwrap();
        assert_eq!(in_parts.read::<u32>().unwrap(), [7], "the file has started over");
        fs::write(&path, "8\n9\n10\n").unwrap();
        assert_eq!(in_parts.read::<u32>().unwrap(), [8, 9, 10], "and has grown beyond the offset");
        fs::write(&path, "8\n9\n10\n11\n").unwrap();
        assert_eq!(in_parts.read::<u32>().unwrap(), [11]);
        fs::write(&path, "5\n6").unwrap();
        assert_eq!(newest::<u32>(&path).unwrap(), Some(5), "6 may be incomplete");
    }

    #[test]
    fn the_newest_line_is_read_from_the_end_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.jsonl");
        assert_eq!(newest::<u32>(&path).unwrap(), None);
        fs::write(&path, b"12").unwrap();
        assert_eq!(newest::<u32>(&path).unwrap(), None);
        fs::write(&path, "7\n".repeat(1 << 20) + "8\n").unwrap();
        assert_eq!(newest::<u32>(&path).unwrap(), Some(8));
    }

    #[test]
    fn a_long_series_keeps_its_ends_and_a_bounded_number_of_values() {
        let of = |count: u32| {
            let mut series = Thinned::default();
            (0..count).for_each(|value| series.push(value));
            series.iter().copied().collect::<Vec<_>>()
        };
        assert_eq!(of(3), [0, 1, 2]);
        let long = of(100_000);
        assert!(long.len() <= Thinned::<u32>::MAX, "{}", long.len());
        assert_eq!((long[0], long[1], long[long.len() - 1]), (0, 32, 99_999));
        assert!(long.is_sorted());
    }
}
