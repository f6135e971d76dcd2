//! Logs of all processes, on standard error at the level of `RUST_LOG` (default `info`).
//!
//! Retries may repeat a warning for as long as their cause lasts. Warnings and errors from one
//! place in the code are therefore limited ([`limit`]): 20 at once, then one every 3 s. Once a
//! minute, a line says how many were left out.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::io::IsTerminal;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use self::limit::{LeftOut, Limits};

mod limit;

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

/// Starts logging. Must be called once.
pub fn init(format: Format) {
    let level = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let limits: &'static Limits = Box::leak(Box::default());
    let lines = fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(level).with(Limited(limits));
    match format {
        Format::Text => {
            registry.with(lines.with_ansi(std::io::stderr().is_terminal())).init();
        }
        Format::Json => registry.with(lines.json()).init(),
    }
    // Without the thread, lines are left out silently; the process works all the same.
    let _ = thread::Builder::new().name("log-limits".to_owned()).spawn(move || report(limits));
}

/// Whether a line of the format [`Format::Text`] is below the level of warnings: it reports
/// progress and is no cause of a failure.
pub fn is_progress(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_time = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    words.next().is_some_and(|word| is_time(word) && word.ends_with('Z'))
        && words.next().is_some_and(|level| ["INFO", "DEBUG", "TRACE"].contains(&level))
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

#[cfg(test)]
mod tests {
    use super::is_progress;

    #[test]
    fn lines_of_progress_differ_from_warnings_and_lines_of_libraries() {
        for (line, expected) in [
            ("2026-01-01T00:00:00.5Z  INFO rljob_learner: trained step=3", true),
            ("2026-01-01T00:00:00.5Z DEBUG rljob_learner: forward", true),
            ("2026-01-01T00:00:00.5Z  WARN rljob_learner: late", false),
            ("2026-01-01T00:00:00.5Z ERROR rljob_learner: lost", false),
            ("error: out of memory", false),
            ("NCCL INFO version 2.28", false),
            ("", false),
        ] {
            assert_eq!(is_progress(line), expected, "{line}");
        }
    }
}
