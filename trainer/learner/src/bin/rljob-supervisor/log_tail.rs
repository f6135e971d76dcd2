//! Log tail: splits the standard error of a process into lines and keeps the last few for failure
//! reports, in the text format. Number and length of lines are bounded.

use std::collections::VecDeque;

/// Maximum number of kept lines.
const LINES: usize = 20;
/// Maximum bytes of a line; a longer one is split. A JSON line is longer than its text.
const LINE_BYTES: usize = 4000;

/// The last lines of a stream.
#[derive(Debug, Default)]
pub struct LogTail {
    lines: VecDeque<String>,
    partial: Vec<u8>,
}

impl LogTail {
    /// Appends bytes and returns the lines that they complete.
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

    /// Ends the stream; returns a last line without newline.
    pub fn finish(&mut self) -> Option<String> {
        (!self.partial.is_empty()).then(|| self.end_line())
    }

    /// The kept lines, separated by newlines.
    pub fn text(&self) -> String {
        self.lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Appends a line.
    pub fn note(&mut self, line: String) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    fn end_line(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        self.note(rljob_logging::readable(&line).into_owned());
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
    fn json_lines_are_kept_as_text() {
        let fatal =
            r#"{"timestamp":"t","level":"ERROR","message":"out of memory","role":"trainer"}"#;
        let mut tail = LogTail::default();
        assert_eq!(tail.push(format!("{fatal}\n").as_bytes()), [fatal]);
        assert_eq!(tail.text(), "error: out of memory");
    }

    #[test]
    fn a_line_above_the_maximum_length_is_split() {
        let mut tail = LogTail::default();
        let lines = tail.push(&[b'x'; 8500]);
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [4000, 4000]);
        assert_eq!(tail.finish().map(|line| line.len()), Some(500));
    }
}
