//! Lines of logs that programs read: those of rljob's processes in both formats, and those of other
//! programs, which stay unchanged.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Levels below warnings.
const PROGRESS: [&str; 3] = ["INFO", "DEBUG", "TRACE"];
/// Fields that the text of a line does not repeat: those of its beginning, and of its process.
const NOT_REPEATED: [&str; 9] =
    ["timestamp", "level", "target", "message", "namespace", "job", "role", "pod", "rank"];

/// A JSON line of a process of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLine(Map<String, Value>);

impl LogLine {
    /// `None`: the line is one of another program, or in the text format.
    pub fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        if !line.starts_with('{') {
            return None;
        }
        let fields: Map<String, Value> = serde_json::from_str(line).ok()?;
        let required = ["timestamp", "level", "message", "role"];
        let is_ours = required.iter().all(|name| fields.get(*name).is_some_and(Value::is_string));
        is_ours.then_some(Self(fields))
    }

    /// Attempt of the learner group.
    pub fn attempt(&self) -> Option<u64> {
        self.0.get("attempt")?.as_u64()
    }

    /// The line in the text format. Lines of learners have their rank before it, as those of local
    /// runs.
    pub fn text(&self) -> String {
        let rank = self.0.get("rank").map(|rank| format!("[rank {rank}] ")).unwrap_or_default();
        let Some(target) = self.field("target") else {
            return format!("{rank}error: {}", self.field("message").unwrap_or_default());
        };
        let (time, level) = (self.field("timestamp"), self.field("level"));
        let mut text = format!(
            "{rank}{} {:>5} {target}: {}",
            time.unwrap_or_default(),
            level.unwrap_or_default(),
            self.field("message").unwrap_or_default()
        );
        let others = self.0.iter().filter(|(name, _)| !NOT_REPEATED.contains(&name.as_str()));
        for (name, value) in others {
            let _ = match value {
                Value::String(value) if is_plain(value) => write!(text, " {name}={value}"),
                value => write!(text, " {name}={value}"),
            };
        }
        text
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }
}

/// Whether a value needs no quotes.
fn is_plain(value: &str) -> bool {
    !value.is_empty()
        && !value.contains(|character: char| {
            character.is_whitespace() || character.is_control() || ['"', '='].contains(&character)
        })
}

/// The text with JSON lines of rljob's processes in the text format.
pub fn readable(text: &str) -> Cow<'_, str> {
    if !text.contains('{') {
        return Cow::Borrowed(text);
    }
    let lines = text.lines().map(|line| match LogLine::parse(line) {
        Some(ours) => Cow::Owned(ours.text()),
        None => Cow::Borrowed(line),
    });
    Cow::Owned(lines.collect::<Vec<_>>().join("\n"))
}

/// Whether a line of an rljob process is below the level of warnings: it reports progress and is no
/// cause of a failure.
pub fn is_progress(line: &str) -> bool {
    if let Some(line) = LogLine::parse(line) {
        return line.field("level").is_some_and(|level| PROGRESS.contains(&level));
    }
    let mut words = line.split_whitespace();
    let is_time = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    words.next().is_some_and(|word| is_time(word) && word.ends_with('Z'))
        && words.next().is_some_and(|level| PROGRESS.contains(&level))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINED: &str = concat!(
        r#"{"timestamp":"2026-01-01T00:00:00.5Z","level":"INFO","target":"rljob_learner","#,
        r#""message":"trained","attempt":1,"cause":"a b","device":"cuda","step":3,"#,
        r#""namespace":"a","job":"sums","role":"trainer","pod":"sums-trainer-0","rank":2}"#,
    );
    const FATAL: &str = concat!(
        r#"{"timestamp":"2026-01-01T00:00:00.5Z","level":"ERROR","message":"no such model","#,
        r#""job":"sums","role":"coordinator"}"#,
    );
    /// A line of a JSON logger of another program.
    const FOREIGN: &str =
        r#"{"timestamp":"2026-01-01T00:00:00.5Z","level":"INFO","message":"ready"}"#;

    #[test]
    fn lines_of_progress_differ_from_warnings_and_lines_of_libraries() {
        for (line, expected) in [
            ("2026-01-01T00:00:00.5Z  INFO rljob_learner: trained step=3", true),
            ("2026-01-01T00:00:00.5Z DEBUG rljob_learner: forward", true),
            ("2026-01-01T00:00:00.5Z  WARN rljob_learner: late", false),
            ("2026-01-01T00:00:00.5Z ERROR rljob_learner: lost", false),
            (TRAINED, true),
            (FATAL, false),
            (FOREIGN, false),
            ("error: out of memory", false),
            ("NCCL INFO version 2.28", false),
            ("", false),
        ] {
            assert_eq!(is_progress(line), expected, "{line}");
        }
    }

    #[test]
    fn json_lines_are_readable_and_lines_of_other_programs_stay_unchanged() {
        assert_eq!(
            LogLine::parse(TRAINED).unwrap().text(),
            "[rank 2] 2026-01-01T00:00:00.5Z  INFO rljob_learner: trained attempt=1 \
             cause=\"a b\" device=cuda step=3"
        );
        assert_eq!(LogLine::parse(TRAINED).unwrap().attempt(), Some(1));
        let foreign = format!("Traceback\n{FATAL}\n  File \"a.py\", {{\n{FOREIGN}");
        assert_eq!(
            readable(&foreign),
            format!("Traceback\nerror: no such model\n  File \"a.py\", {{\n{FOREIGN}")
        );
        assert_eq!(readable("error: out of memory"), "error: out of memory");
    }

    #[test]
    fn cut_lines_and_other_values_are_no_lines_of_ours() {
        let cut = TRAINED.get(5..).unwrap();
        for line in [cut, "{}", "[1]", "{\"role\": 1}", "null", "{"] {
            assert_eq!(LogLine::parse(line), None, "{line}");
        }
    }
}
