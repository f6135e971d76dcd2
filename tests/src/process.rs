//! Running programs to their end, and waiting for conditions. Every wait has a deadline.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(100);

/// Runs a program to its end and returns what it printed. A failure carries the command line and
/// the program's own words.
pub fn run(command: &mut Command) -> Result<String> {
    run_with_input(command, "")
}

/// [`run`], with a text on standard input.
pub fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let line = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {line}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading says why by itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("cannot wait for {line}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{line}: {}\n{}{}", output.status, String::from_utf8_lossy(&output.stderr), stdout);
    }
    Ok(stdout)
}

/// Looks at a condition until it holds; `what` completes "waiting for …". The last error is the
/// cause when time is up.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let seen = condition();
        if matches!(seen, Ok(true)) {
            return Ok(());
        }
        if start.elapsed() >= limit {
            let error =
                seen.err().unwrap_or_else(|| anyhow::anyhow!("the condition does not hold"));
            return Err(
                error.context(format!("waiting for {what}: not within {} s", limit.as_secs()))
            );
        }
        std::thread::sleep(POLL);
    }
}

/// Reads until what it reads has stayed the same for so long.
pub fn wait_until_still<T: PartialEq>(
    what: &str,
    limit: Duration,
    still: Duration,
    mut read: impl FnMut() -> Result<T>,
) -> Result<()> {
    let (mut before, mut since) = (None, Instant::now());
    wait_until(what, limit, || {
        let now = Some(read()?);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        Ok(since.elapsed() >= still)
    })
}
