//! Command execution, servers with a log, and polling of conditions with a deadline.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Shortest pause between two evaluations of a condition.
const POLL: Duration = Duration::from_millis(100);
/// Longest pause.
const MAX_POLL: Duration = Duration::from_secs(1);
/// Pause in durations of an evaluation: one that starts a program, such as kubectl, leaves the
/// processors to what it waits for.
const PAUSE: u32 = 3;

/// Runs a command to completion and returns its standard output. Errors contain the command line
/// and the program's output.
pub fn run(command: &mut Command) -> Result<String> {
    run_with_input(command, "")
}

/// [`run`] with `input` on standard input.
pub fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let line = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {line}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that exits without reading its input reports the reason in its output.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("failed to wait for {line}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{line}: {}\n{}{}", output.status, String::from_utf8_lossy(&output.stderr), stdout);
    }
    Ok(stdout)
}

/// Lets a command append its output to the file `log`, and gives it no input.
pub fn logged<'a>(command: &'a mut Command, log: &Path) -> Result<&'a mut Command> {
    let output = fs::OpenOptions::new().create(true).append(true).open(log)?;
    Ok(command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output))
}

/// Starts a server with a log and waits until it listens on a port of the loopback interface. An
/// error has the log; the server is killed then.
pub fn start_server(
    command: &mut Command,
    log: &Path,
    port: u16,
    limit: Duration,
) -> Result<Child> {
    let line = format!("{command:?}");
    let mut server =
        logged(command, log)?.spawn().with_context(|| format!("failed to start {line}"))?;
    let listens = || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    if let Err(error) = wait_until(&format!("{line} to listen"), limit, listens) {
        server.kill()?;
        server.wait()?;
        return Err(error).with_context(|| fs::read_to_string(log).unwrap_or_default());
    }
    Ok(server)
}

/// Polls a condition until it holds; `what` completes "waiting for …". On timeout, the last error
/// is the cause.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let evaluated = Instant::now();
        let result = condition();
        let pause = (evaluated.elapsed() * PAUSE).clamp(POLL, MAX_POLL);
        if matches!(result, Ok(true)) {
            return Ok(());
        }
        if start.elapsed() >= limit {
            let error =
                result.err().unwrap_or_else(|| anyhow::anyhow!("the condition does not hold"));
            return Err(
                error.context(format!("waiting for {what}: not within {} s", limit.as_secs()))
            );
        }
        std::thread::sleep(pause);
    }
}

/// Polls a value until it has not changed for `still`.
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
