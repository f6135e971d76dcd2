//! JSON lines of a process: one object per event, with the process, its attempt and its step.
//!
//! ```text
//! {"timestamp":"2026-01-01T00:00:00.5Z","level":"INFO","target":"rljob_learner","message":"…",
//!  "seconds":1.5,"attempt":1,"step":7,"namespace":"team-a","job":"sums","role":"trainer", …}
//! ```
//!
//! The fields of an event are at the top level. Those of the identity replace fields of an event
//! with the same name; `attempt` and `step` of an event are its own.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Number, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Variable with the fields of every JSON line, as a JSON object: `namespace`, `job`, `role`,
/// `pod`. The operator sets it in pods.
pub const FIELDS_VARIABLE: &str = "RLJOB_LOG_FIELDS";
/// Number that is not known yet.
const UNKNOWN: u64 = u64::MAX;
/// Longest encoded error that ends a process: a kubelet keeps the last 2,048 bytes of a log, and a
/// line has its other fields.
const FATAL_BYTES: usize = 1_500;

static ATTEMPT: AtomicU64 = AtomicU64::new(UNKNOWN);
static STEP: AtomicU64 = AtomicU64::new(UNKNOWN);

/// Sets the attempt of the learner group in later lines.
pub fn set_attempt(attempt: u32) {
    ATTEMPT.store(attempt.into(), Ordering::Relaxed);
}

/// Sets the step in later lines.
pub fn set_step(step: u32) {
    STEP.store(step.into(), Ordering::Relaxed);
}

/// Fields that say which process wrote a line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity(Map<String, Value>);

impl Identity {
    /// The fields of [`FIELDS_VARIABLE`]; none if it is not set or is no JSON object.
    pub fn from_environment() -> Self {
        let text = std::env::var(FIELDS_VARIABLE).unwrap_or_default();
        Self(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }
}

/// Format of the events of a process.
#[derive(Clone, Debug)]
pub(crate) struct JsonLines(Arc<Identity>);

impl JsonLines {
    pub(crate) fn new(identity: Identity) -> Self {
        Self(Arc::new(identity))
    }

    /// Line of the error that ends the process. It has no `target`.
    pub(crate) fn fatal(&self, error: &str) -> String {
        let message = Value::from(shortened(error));
        self.line("ERROR", None, &[("message".to_owned(), message)])
    }

    /// A line of the fields of an event.
    fn line(&self, level: &str, target: Option<&str>, event: &[(String, Value)]) -> String {
        let mut time = String::new();
        // A clock before 1970 leaves the time empty.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let mut line = format!("{{\"timestamp\":{},\"level\":\"{level}\"", Value::from(time));
        let mut add = |name: &str, value: &Value| {
            let _ = write!(line, ",{}:{value}", Value::from(name));
        };
        if let Some(target) = target {
            add("target", &Value::from(target));
        }
        for (name, value) in event.iter().filter(|(name, _)| !self.0.0.contains_key(name)) {
            add(name, value);
        }
        for (name, number) in [("attempt", &ATTEMPT), ("step", &STEP)] {
            let number = number.load(Ordering::Relaxed);
            if number != UNKNOWN && event.iter().all(|(own, _)| own != name) {
                add(name, &Value::from(number));
            }
        }
        for (name, value) in &self.0.0 {
            add(name, value);
        }
        line.push('}');
        line
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let target = fields.target.as_deref().unwrap_or_else(|| metadata.target());
        writeln!(writer, "{}", self.line(metadata.level().as_str(), Some(target), &fields.all))
    }
}

/// Fields of an event, in their order.
#[derive(Debug, Default)]
struct Fields {
    all: Vec<(String, Value)>,
    /// Target of an event of the crate `log`.
    target: Option<String>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("log.target", Value::String(target)) => self.target = Some(target),
            (name, _) if name.starts_with("log.") => {}
            // The envelope of the line.
            ("timestamp" | "level" | "target", _) => {}
            (name, value) => self.all.push((name.trim_start_matches("r#").to_owned(), value)),
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        let number = Number::from_f64(value).map(Value::Number);
        self.add(field, number.unwrap_or_else(|| Value::from(value.to_string())));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::from(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, Value::from(format!("{value:?}")));
    }
}

/// The start and the end of a long text: the cause of an error is at its end.
fn shortened(text: &str) -> String {
    if encoded(text) <= FATAL_BYTES {
        return text.to_owned();
    }
    let fitting = |characters: &mut dyn Iterator<Item = char>| -> Vec<char> {
        let mut bytes = 0_usize;
        let fits = |character: &char| {
            bytes = bytes.saturating_add(encoded(character.encode_utf8(&mut [0; 4])));
            bytes <= FATAL_BYTES / 2
        };
        characters.take_while(fits).collect()
    };
    let start: String = fitting(&mut text.chars()).into_iter().collect();
    let end: String = fitting(&mut text.chars().rev()).into_iter().rev().collect();
    format!("{start} … {end}")
}

/// Bytes of a text in JSON, without its quotes.
fn encoded(text: &str) -> usize {
    Value::from(text).to_string().len().saturating_sub(2)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn identity() -> Identity {
        Identity::default().with("job", "sums").with("role", "trainer").with("rank", 3)
    }

    /// The JSON line of events.
    fn logged(events: impl FnOnce()) -> Vec<Value> {
        let output = Output::default();
        let writer = output.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .event_format(JsonLines::new(identity()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), events);
        let bytes = output.0.lock().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_has_the_fields_of_its_event_and_its_process() {
        let mut lines = logged(|| {
            tracing::warn!(
                step = 7,
                loss = f64::NAN,
                role = "replaced",
                path = %"a \"b\"",
                "line\none"
            );
        });
        let time = lines[0]["timestamp"].take();
        assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
        assert_eq!(
            lines,
            [json!({
                "timestamp": null, "level": "WARN", "target": "rljob_logging::json::tests",
                "message": "line\none", "step": 7, "loss": "NaN", "path": "a \"b\"",
                "job": "sums", "role": "trainer", "rank": 3,
            })]
        );
    }

    #[test]
    fn a_fatal_error_keeps_its_start_and_its_end() {
        let lines = JsonLines::new(identity());
        let fatal = |error: &str| -> Value { serde_json::from_str(&lines.fatal(error)).unwrap() };
        let mut short = fatal("no such model");
        assert!(short["timestamp"].take().is_string());
        assert_eq!(
            short,
            json!({
                "timestamp": null, "level": "ERROR", "message": "no such model",
                "job": "sums", "role": "trainer", "rank": 3,
            })
        );
        let long = fatal(&format!("first {} last", "é".repeat(2_000)));
        let message = long["message"].as_str().unwrap();
        assert!(message.starts_with("first é") && message.ends_with("é last"), "{message}");
        for error in ["é", "\"", "\n", "\u{1}", "x"] {
            let line = lines.fatal(&error.repeat(3_000));
            assert!((1_400..1_800).contains(&line.len()), "{}: {line}", line.len());
        }
    }
}
