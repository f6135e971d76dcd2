//! Lines of a container's log as `rljob logs` prints them: JSON lines of rljob's processes as text,
//! lines of other programs unchanged; or one JSON object for each line. Pure.

use rljob_logging::LogLine;
use serde_json::json;

use crate::terminal::printable;

/// Format of the printed lines.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogOutput {
    #[default]
    Text,
    Json,
}

/// What is printed of each line.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineFormat {
    pub output: LogOutput,
    /// The only attempt of the learner group whose lines are printed.
    pub attempt: Option<u64>,
    /// Whether text lines begin with the name of their pod.
    pub has_pod: bool,
}

/// Lines of one container, in their order.
#[derive(Debug)]
pub struct LogLines {
    format: LineFormat,
    pod: String,
    /// Attempt of the newest line that has one: lines without one, as a traceback, belong to it.
    attempt: Option<u64>,
}

impl LogLines {
    pub fn new(format: LineFormat, pod: String) -> Self {
        Self { format, pod, attempt: None }
    }

    /// The line to print for a line of the log, if it is selected.
    pub fn next(&mut self, line: &str) -> Option<String> {
        let ours = LogLine::parse(line);
        self.attempt = ours.as_ref().and_then(LogLine::attempt).or(self.attempt);
        if self.format.attempt.is_some_and(|selected| self.attempt != Some(selected)) {
            return None;
        }
        Some(match (self.format.output, ours) {
            (LogOutput::Json, Some(_)) => printable(line.trim()).into_owned(),
            (LogOutput::Json, None) => {
                json!({"pod": self.pod, "message": printable(line)}).to_string()
            }
            (LogOutput::Text, ours) => {
                let text = ours.map_or_else(|| line.to_owned(), |ours| ours.text());
                let prefix =
                    if self.format.has_pod { format!("{} | ", self.pod) } else { String::new() };
                format!("{prefix}{}", printable(&text))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: [&str; 5] = [
        r#"{"timestamp":"t","level":"INFO","target":"a","message":"one","attempt":0,"role":"t"}"#,
        "NCCL INFO ready",
        r#"{"timestamp":"t","level":"WARN","target":"a","message":"two","attempt":1,"role":"t"}"#,
        "Traceback:",
        r#"{"level":"INFO","message":"of another program"}"#,
    ];

    fn printed(format: LineFormat) -> Vec<String> {
        let mut lines = LogLines::new(format, "sums-trainer-0".to_owned());
        LOG.iter().filter_map(|line| lines.next(line)).collect()
    }

    #[test]
    fn json_lines_are_printed_as_text_and_others_unchanged() {
        let one = printed(LineFormat::default());
        let expected = [
            "t  INFO a: one attempt=0",
            "NCCL INFO ready",
            "t  WARN a: two attempt=1",
            "Traceback:",
            r#"{"level":"INFO","message":"of another program"}"#,
        ];
        assert_eq!(one, expected);
        let several = printed(LineFormat { has_pod: true, ..LineFormat::default() });
        assert_eq!(several, expected.map(|line| format!("sums-trainer-0 | {line}")));
    }

    #[test]
    fn json_output_has_an_object_for_every_line() {
        let lines =
            printed(LineFormat { output: LogOutput::Json, has_pod: true, ..LineFormat::default() });
        assert_eq!([&lines[0], &lines[2]], [LOG[0], LOG[2]]);
        let foreign = |line: &str| json!({"pod": "sums-trainer-0", "message": line}).to_string();
        assert_eq!([&lines[1], &lines[4]], [&foreign(LOG[1]), &foreign(LOG[4])]);
    }

    #[test]
    fn lines_without_an_attempt_belong_to_that_of_the_line_before() {
        let of = |attempt| printed(LineFormat { attempt: Some(attempt), ..LineFormat::default() });
        assert_eq!(of(0), ["t  INFO a: one attempt=0", "NCCL INFO ready"]);
        assert_eq!(of(1)[..2], ["t  WARN a: two attempt=1", "Traceback:"]);
        assert_eq!(of(2), Vec::<String>::new());
    }
}
