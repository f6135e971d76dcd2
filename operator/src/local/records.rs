//! The JSONL files of a run directory, read while others write them: a last line that is not
//! complete yet is left for the next time.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A rollout to read: one line of `samples.jsonl`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SampleLine {
    /// The step it was sampled for.
    pub step: u32,
    /// The prompt's text.
    pub prompt: String,
    /// The completion's text.
    pub completion: String,
    /// Its reward.
    pub reward: f64,
    /// The reference answer.
    #[serde(default)]
    pub answer: Option<String>,
}

/// Follows a file that grows by whole lines.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    /// Bytes that were read as complete lines.
    offset: u64,
}

impl Tail {
    /// From the file's beginning; it need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, offset: 0 }
    }

    /// Every line completed since the last call. A line that is not a `T` is passed over with a
    /// warning: a report must not stop a run.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn read<T: DeserializeOwned>(&mut self) -> io::Result<Vec<T>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.offset += complete as u64;
        let lines = bytes[..complete].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Ok(lines.filter_map(|line| self.parse(line)).collect())
    }

    fn parse<T: DeserializeOwned>(&self, line: &[u8]) -> Option<T> {
        serde_json::from_slice(line)
            .inspect_err(
                |error| tracing::warn!(path = %self.path.display(), %error, "passed over a line"),
            )
            .ok()
    }
}

/// Every complete line of a file; none if there is no file.
///
/// # Errors
/// The file is there and cannot be read.
pub fn read_all<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    Tail::new(path.to_owned()).read()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_line_is_read_once_and_only_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.jsonl");
        let mut tail = Tail::new(path.clone());
        assert_eq!(tail.read::<u32>().unwrap(), Vec::<u32>::new());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"1\n2\n3").unwrap();
        assert_eq!(tail.read::<u32>().unwrap(), [1, 2]);
        file.write_all(b"4\nnot a number\n5\n").unwrap();
        assert_eq!(tail.read::<u32>().unwrap(), [34, 5]);
        assert_eq!(read_all::<u32>(&path).unwrap(), [1, 2, 34, 5]);
    }
}
