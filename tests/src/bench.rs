//! Shared parts of benchmarks: alternating rounds with a peer, medians, and the result lines of
//! `make bench`.
//!
//! ```text
//!  bench NAME RATIO AIM holds|short
//! ```
//! Benchmarks do not fail: a result that misses its target is printed as `short`.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Target of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// Lower bound, for a speed relative to the peer's.
    AtLeast(f64),
    /// Upper bound, for a difference relative to its limit, or a time.
    AtMost(f64),
}

/// Prints the figures and the verdict of a row.
pub fn row(name: &str, figures: &str, ratio: f64, aim: Aim) {
    note(name, figures);
    println!("{}", verdict(name, ratio, aim));
}

/// Prints figures without a target.
pub fn note(name: &str, figures: &str) {
    println!("{name}: {figures}; load average {}", load_average());
}

/// Prints why a row was skipped.
pub fn skipped(name: &str, why: &str) {
    println!("bench {name} skipped: {why}");
}

fn verdict(name: &str, ratio: f64, aim: Aim) -> String {
    let (aim, holds) = match aim {
        Aim::AtLeast(aim) => (aim, ratio >= aim),
        Aim::AtMost(aim) => (aim, ratio <= aim),
    };
    let ratio = if ratio < 0.01 { format!("{ratio:.1e}") } else { format!("{ratio:.2}") };
    format!("bench {name} {ratio} {aim:.2} {}", if holds { "holds" } else { "short" })
}

/// Runs `ours` and `theirs` alternately for `rounds` rounds after one warm-up round. Returns their
/// medians.
pub fn in_turn(
    rounds: usize,
    mut ours: impl FnMut() -> f64,
    mut theirs: impl FnMut() -> f64,
) -> (f64, f64) {
    let (ours, theirs) = (0..=rounds).map(|_| (ours(), theirs())).skip(1).unzip();
    (median(ours), median(theirs))
}

/// The median; the upper one if the number of values is even.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Load average of the last minute.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// A peer process that answers each input line with a number. Killed on drop.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {command:?}"))?;
        let answers =
            BufReader::new(child.stdout.take().context("the peer has no standard output")?);
        Ok(Self { child, answers })
    }

    /// Sends a line and returns the answer.
    pub fn ask(&mut self, line: &str) -> Result<f64> {
        writeln!(self.child.stdin.as_mut().context("the peer has no standard input")?, "{line}")?;
        let mut answer = String::new();
        ensure!(self.answers.read_line(&mut answer)? > 0, "the peer exited");
        answer.trim().parse().with_context(|| format!("the peer answered {answer:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{Aim, in_turn, median, verdict};

    #[test]
    fn verdicts_compare_the_ratio_with_the_target() {
        assert_eq!(verdict("speed", 1.234, Aim::AtLeast(1.5)), "bench speed 1.23 1.50 short");
        assert_eq!(verdict("speed", 1.5, Aim::AtLeast(1.5)), "bench speed 1.50 1.50 holds");
        assert_eq!(
            verdict("difference", 0.000_12, Aim::AtMost(1.0)),
            "bench difference 1.2e-4 1.00 holds"
        );
        assert_eq!(
            verdict("difference", f64::NAN, Aim::AtMost(1.0)),
            "bench difference NaN 1.00 short"
        );
    }

    #[test]
    fn the_first_round_does_not_count() {
        let (mut ours, mut theirs) =
            ([100.0, 1.0, 2.0, 9.0].into_iter(), [0.0, 5.0, 7.0, 6.0].into_iter());
        assert_eq!(in_turn(3, || ours.next().unwrap(), || theirs.next().unwrap()), (2.0, 6.0));
        assert!(median(Vec::new()).is_nan());
    }
}
