//! Logs of all processes, on standard error at the level of `RUST_LOG` (default `info`): text for
//! people, or JSON lines that say which process wrote them ([`json`]). Programs that read logs
//! understand both ([`lines`]).
//!
//! Retries may repeat a warning for as long as their cause lasts. Warnings and errors from one
//! place in the code are therefore limited ([`limit`]): 20 at once, then one every 3 s. Once a
//! minute, a line says how many were left out.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::DefaultFields;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use self::json::JsonLines;
pub use self::json::{FIELDS_VARIABLE, Identity, set_attempt, set_step};
use self::limit::{LeftOut, Limits};
pub use self::lines::{LogLine, is_progress, readable};

mod json;
mod limit;
mod lines;

/// Variable with the format of a process's log: `text` (the default) or `json`. The operator sets
/// it in pods.
pub const FORMAT_VARIABLE: &str = "RLJOB_LOG_FORMAT";

/// JSON format of this process, if it logs JSON.
static JSON: OnceLock<JsonLines> = OnceLock::new();

/// Interval between two reports of lines that were left out.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Format of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people; with colors on a terminal.
    Text,
    /// One JSON object per line.
    Json,
}

impl Format {
    /// Format of [`FORMAT_VARIABLE`]; text for any other value.
    pub fn from_environment() -> Self {
        match std::env::var(FORMAT_VARIABLE) {
            Ok(name) if name == "json" => Self::Json,
            _ => Self::Text,
        }
    }
}

/// Starts logging. Must be called once. `identity` is in every JSON line.
pub fn init(format: Format, identity: Identity) {
    let level = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let limits: &'static Limits = Box::leak(Box::default());
    let lines = fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(level).with(Limited(limits));
    match format {
        Format::Text => {
            registry.with(lines.with_ansi(std::io::stderr().is_terminal())).init();
        }
        Format::Json => {
            let json = JSON.get_or_init(|| JsonLines::new(identity)).clone();
            let lines = lines.with_ansi(false).fmt_fields(DefaultFields::new());
            registry.with(lines.event_format(json)).init();
        }
    }
    // Without the thread, lines are left out silently; the process works all the same.
    let _ = thread::Builder::new().name("log-limits".to_owned()).spawn(move || report(limits));
}

/// Prints the error that ends the process, as one line in the format of its log. The last line of a
/// log is what an operator shows.
pub fn print_fatal(error: &str) {
    let error = error.replace('\n', " ");
    match JSON.get() {
        Some(json) => print(&json.fatal(&error)),
        None => print(&format!("error: {error}")),
    }
}

/// Writes a line to standard error. A line that cannot be written, as on a full disk, is lost;
/// `eprintln!` would panic.
pub fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Rejects events beyond the limits.
struct Limited(&'static Limits);

impl<S: Subscriber> Layer<S> for Limited {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        *metadata.level() > Level::WARN
            || metadata.target() == module_path!()
            || self.0.admits(metadata.callsite(), place(metadata), Instant::now())
    }
}

/// File and line of an event.
fn place(metadata: &tracing::Metadata<'_>) -> String {
    let line = metadata.line().map(|line| format!(":{line}")).unwrap_or_default();
    format!("{}{line}", metadata.file().unwrap_or_else(|| metadata.target()))
}

/// Reports once per interval what was left out, for as long as the process runs.
fn report(limits: &Limits) {
    loop {
        thread::sleep(REPORT_INTERVAL);
        for LeftOut { place, count } in limits.take_left_out() {
            tracing::warn!(place, count, "left out repeated log lines");
        }
    }
}
