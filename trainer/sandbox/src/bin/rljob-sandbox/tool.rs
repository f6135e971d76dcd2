//! Tool: a program that runs once per call, each time in a new sandbox.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use rljob_sandbox::children::end_children;
use rljob_sandbox::plan::Plan;
use rljob_sandbox::tool::{ToolOutcome, ToolRequest, ToolResponse, ToolSettings};
use rustix::process::{getpid, set_child_subreaper};

use crate::memory::MemoryLimit;
use crate::node::{NOT_STARTED, Unsupported, entering, has_namespaces, program, scratch};

/// Bytes of standard error that are kept.
const MAX_STDERR: usize = 4096;
/// A command that does nothing.
const TRUE: &[&str] = &["true"];

/// Answers calls until the end of standard input. The program keeps the user, who may be the only
/// one who can read its folder.
pub fn run(settings: &ToolSettings, may_have_namespaces: bool) -> anyhow::Result<()> {
    set_child_subreaper(Some(getpid())).context("failed to become a subreaper")?;
    let settings = ToolSettings { folder: folder(settings)?, ..settings.clone() };
    let command = command(&settings)?;
    let namespaces = may_have_namespaces
        && has_namespaces(true, TRUE, |namespaces, scratch| {
            Plan::for_tool(&settings, namespaces, scratch)
        })?;
    let mut output = std::io::stdout().lock();
    for line in BufReader::new(std::io::stdin()).lines() {
        let ToolRequest { id, input } = serde_json::from_str(&line?).context("invalid request")?;
        let scratch = scratch(true)?;
        let plan = Plan::for_tool(&settings, namespaces, scratch.path().to_owned());
        let mut entering = entering(&plan, true)?;
        entering.args(&command);
        let memory = MemoryLimit::start(&plan, 0);
        let called = call(entering, input, &settings, &memory);
        drop(memory);
        end_children();
        scratch.close().context("failed to remove the scratch folder of a call")?;
        serde_json::to_writer(&mut output, &ToolResponse { id, outcome: called? })?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

fn folder(settings: &ToolSettings) -> Result<Option<PathBuf>, Unsupported> {
    let open = |path: &PathBuf| {
        let path_text = path.display().to_string();
        path.canonicalize().map_err(|cause| Unsupported::Folder { path: path_text, cause })
    };
    settings.folder.as_ref().map(open).transpose()
}

/// The command with the path of its program.
fn command(settings: &ToolSettings) -> Result<Vec<String>, Unsupported> {
    let mut command = settings.command.clone();
    let Some(name) = command.first_mut() else {
        return Err(Unsupported::Program(String::new()));
    };
    let path = if name.contains('/') {
        let folder = settings.folder.clone().unwrap_or_default();
        let path = folder.join(&*name);
        if !path.is_file() {
            return Err(Unsupported::Path(path.display().to_string()));
        }
        path
    } else {
        program(name)?
    };
    *name = path.to_string_lossy().into_owned();
    Ok(command)
}

/// Runs the program on an input. An error says that the sandbox failed. Leaves processes to
/// `end_children`.
fn call(
    mut command: Command,
    input: String,
    settings: &ToolSettings,
    memory: &MemoryLimit,
) -> anyhow::Result<ToolOutcome> {
    let now = Instant::now();
    let limit = Duration::from_secs(settings.timeout_seconds.into());
    let deadline = now.checked_add(limit).unwrap_or(now);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("failed to start a sandbox")?;
    let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
    let ((mut stdin, stdout), stderr) = pipes.context("a pipe is missing")?;
    // The program need not read its input.
    std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let longest = (settings.output_kib as usize).saturating_mul(1024);
    let output = on_thread(move || start(stdout, longest));
    let errors = on_thread(move || tail(stderr));
    let status = on_thread(move || exit(child));
    let left = || deadline.saturating_duration_since(Instant::now());
    let Ok(output) = output.recv_timeout(left()) else { return Ok(ToolOutcome::TimeLimit) };
    if output.len() > longest {
        return Ok(ToolOutcome::OutputLimit);
    }
    let Ok(Some(status)) = status.recv_timeout(left()) else { return Ok(ToolOutcome::TimeLimit) };
    if status.success() {
        return Ok(String::from_utf8(output).map_or(ToolOutcome::NotText, ToolOutcome::Output));
    }
    if memory.was_exceeded() {
        return Ok(ToolOutcome::MemoryLimit);
    }
    let errors = errors.recv_timeout(left()).unwrap_or_default();
    let stderr = String::from_utf8_lossy(&errors);
    let stderr = stderr.trim().lines().next_back().unwrap_or_default().to_owned();
    anyhow::ensure!(
        status.code() != Some(i32::from(NOT_STARTED)),
        "the sandbox of a call failed: {stderr}"
    );
    Ok(ToolOutcome::Failed { status: status.to_string(), stderr })
}

fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    // The receiver is gone if the call exceeded a limit.
    std::thread::spawn(move || drop(sender.send(work())));
    receiver
}

/// At most one byte more than the limit.
fn start(output: impl Read, longest: usize) -> Vec<u8> {
    let mut start = Vec::new();
    // What was read before an error is the output.
    let _ = output.take((longest as u64).saturating_add(1)).read_to_end(&mut start);
    start
}

/// The last bytes until the end.
fn tail(mut output: impl Read) -> Vec<u8> {
    let (mut tail, mut part) = (Vec::new(), [0; MAX_STDERR]);
    while let Ok(length @ 1..) = output.read(&mut part) {
        tail.extend(part.iter().take(length));
        let excess = tail.len().saturating_sub(MAX_STDERR);
        tail.drain(..excess);
    }
    tail
}

/// `None` if `end_children` reaped the process.
fn exit(mut child: Child) -> Option<ExitStatus> {
    child.wait().ok()
}
