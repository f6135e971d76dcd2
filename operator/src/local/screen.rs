//! Terminal output: lines on standard output, and a progress bar on standard error if it is a
//! terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use rljob_protocol::status::UNKNOWN_STEPS;

use crate::terminal::printable;

/// Output of a running job.
#[derive(Debug)]
pub struct Screen {
    bar: ProgressBar,
}

impl Screen {
    /// Creates a bar, which is hidden if standard error is not a terminal.
    pub fn new(name: &str, total_steps: u32) -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(5)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(length(total_steps), target);
        if let Ok(style) =
            ProgressStyle::with_template("{prefix} {bar:32} {pos}/{len} steps  {left}  {msg}")
        {
            bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ ").with_key("left", left));
        }
        bar.set_prefix(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar }
    }

    /// Sets the number of steps.
    pub fn set_steps(&self, total_steps: u32) {
        if let Some(length) = length(total_steps) {
            self.bar.set_length(length);
        }
    }

    /// Prints a line above the bar.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn line(&self, line: &str) -> io::Result<()> {
        self.bar.suspend(|| print_line(line))
    }

    /// Sets the completed steps at the start; they do not count for the remaining time.
    pub fn resume_at(&self, step: u32) {
        self.bar.set_position(u64::from(step));
        self.bar.reset_eta();
    }

    /// Sets the completed steps and the activity.
    pub fn progress(&self, step: u32, doing: &str) {
        self.bar.set_position(u64::from(step));
        self.bar.set_message(printable(doing).into_owned());
    }

    /// Completed steps of the bar.
    pub fn position(&self) -> u32 {
        u32::try_from(self.bar.position()).unwrap_or(u32::MAX)
    }

    /// Removes the bar.
    pub fn close(&self) {
        self.bar.finish_and_clear();
    }
}

/// Prints a line to standard output, without characters that act on a terminal.
///
/// # Errors
/// Standard output is closed.
pub fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", printable(line))?;
    out.flush()
}

fn left(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let seconds = state.eta().as_secs();
    let known = state.pos() > 0 && Some(state.pos()) != state.len();
    let _ = if known {
        write!(out, "{}:{:02} left", seconds / 60, seconds % 60)
    } else {
        write!(out, "")
    };
}

/// Length of the bar; none before the number of steps is known.
fn length(total_steps: u32) -> Option<u64> {
    (total_steps != UNKNOWN_STEPS).then(|| total_steps.into())
}
