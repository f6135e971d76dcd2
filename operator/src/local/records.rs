//! Reader of the JSONL files of a run directory while they grow. An incomplete last line is left
//! for the next read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A rollout: one line of `samples.jsonl`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SampleLine {
    /// Step whose batch contains it.
    pub step: u32,
    pub prompt: String,
    pub completion: String,
    pub reward: f64,
    /// Reference answer.
    #[serde(default)]
    pub answer: Option<String>,
}

/// Follows a file of lines.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    /// Length of the complete lines read so far.
    offset: u64,
}

impl Tail {
    /// Reads from the start of the file, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, offset: 0 }
    }

    /// Lines completed since the last call. Malformed lines are skipped with a warning.
    ///
    /// # Errors
    /// The file exists and cannot be read.
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
            .inspect_err(|error| {
                tracing::warn!(path = %self.path.display(), %error, "skipped a malformed line");
            })
            .ok()
    }
}

/// Complete lines of a file; empty if the file does not exist.
///
/// # Errors
/// The file exists and cannot be read.
pub fn read_all<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    Tail::new(path.to_owned()).read()
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
        assert_eq!(read_all::<u32>(&path).unwrap(), [1, 2, 34, 5]);
    }
}
