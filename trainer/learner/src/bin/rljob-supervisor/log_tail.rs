//! Bytes of a process's standard error become lines, of which the last few are kept for a failure's
//! report. Both are bounded, whatever the process writes.

use std::collections::VecDeque;

/// Lines kept.
const LINES: usize = 20;
/// A longer line is cut into lines of this many bytes.
const LINE_BYTES: usize = 2000;

/// The last lines of a stream.
#[derive(Debug, Default)]
pub struct LogTail {
    lines: VecDeque<String>,
    partial: Vec<u8>,
}

impl LogTail {
    /// Takes what was read and returns the lines that it completes.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut complete = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.partial.push(byte);
            }
            if byte == b'\n' || self.partial.len() >= LINE_BYTES {
                complete.push(self.end_line());
            }
        }
        complete
    }

    /// The stream has ended: returns a last line that had no newline.
    pub fn finish(&mut self) -> Option<String> {
        (!self.partial.is_empty()).then(|| self.end_line())
    }

    /// The lines kept, joined.
    pub fn text(&self) -> String {
        self.lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Adds a line of the supervisor's own.
    pub fn note(&mut self, line: String) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    fn end_line(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        self.note(line.clone());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::LogTail;

    #[test]
    fn lines_are_joined_over_reads_and_only_the_last_twenty_are_kept() {
        let mut tail = LogTail::default();
        assert_eq!(tail.push(b"fir"), Vec::<String>::new());
        assert_eq!(tail.push(b"st\nsecond\nthi"), ["first", "second"]);
        assert_eq!(tail.finish(), Some("thi".to_owned()));
        for line in 0..18 {
            tail.push(format!("{line}\n").as_bytes());
        }
        let kept: Vec<String> = ["second", "thi"]
            .map(str::to_owned)
            .into_iter()
            .chain((0..18).map(|line| line.to_string()))
            .collect();
        assert_eq!(tail.text(), kept.join("\n"));
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut tail = LogTail::default();
        let lines = tail.push(&[b'x'; 4500]);
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [2000, 2000]);
        assert_eq!(tail.finish().map(|line| line.len()), Some(500));
    }
}
