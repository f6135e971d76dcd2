//! One command for one connection. When the connection closes or the command ends, all descendants
//! are killed, also those in other sessions and process groups.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use rljob_coordinator::reward::session::{
    Answer, BASE_URL_VARIABLE, MAX_LINE, MAX_RESPONSE, Start,
};
use rljob_sandbox::children::{kill_children, reaper};
use rustix::process::{Pid, WaitStatus, getpid, set_child_subreaper};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::mpsc;

use crate::forward::AgentPort;
use crate::limits::NOT_STARTED;

/// Maximum wait for the exit status and the standard error of a command that closed its output.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a logged line of standard error in bytes.
const MAX_LOG_LINE: u64 = 4096;
/// Logged lines of a command per second; further ones are dropped.
const LOG_RATE: u32 = 100;
/// Maximum length of the start of a long line, in bytes.
const EXCERPT: usize = 1024;

/// Runs the session of the connection on standard input.
pub async fn run() -> anyhow::Result<()> {
    let stream = std::io::stdin().as_fd().try_clone_to_owned()?;
    let stream = std::os::unix::net::UnixStream::from(stream);
    stream.set_nonblocking(true)?;
    let (requests, mut answers) = UnixStream::from_std(stream)?.into_split();
    let mut requests = BufReader::new(requests);
    let Some(line) = read_line(&mut requests, MAX_LINE).await? else { return Ok(()) };
    let mut start: Start =
        serde_json::from_slice(&line).context("failed to parse the first line")?;
    set_child_subreaper(Some(getpid())).context("failed to become a subreaper")?;
    // Removed after the end of all processes. The user of programs can enter it, not list it.
    let scratch = tempfile::tempdir().context("failed to create a scratch folder")?;
    std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o711))?;
    let is_agent = matches!(start, Start::Agent { .. });
    let port = open_port(&mut start)?;
    let mut program = Program::start(start, scratch.path())?;
    let result = match port {
        Some(port) => program.forward(port, requests, answers).await,
        None if is_agent => program.finish(&mut requests, &mut answers).await,
        None => program.converse(&mut requests, &mut answers).await,
    };
    loop {
        kill_children(&BTreeSet::new());
        if program.ended.recv().await.is_none() {
            return result;
        }
    }
}

/// The port for the requests of an agent that this session forwards.
fn open_port(start: &mut Start) -> anyhow::Result<Option<AgentPort>> {
    let Start::Agent { variables, is_forwarded: true, .. } = start else { return Ok(None) };
    let port = AgentPort::open()?;
    variables.insert(BASE_URL_VARIABLE.to_owned(), port.base_url()?);
    Ok(Some(port))
}

/// A running command.
struct Program {
    pid: Pid,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    last_stderr_line: Arc<Mutex<String>>,
    ended: mpsc::Receiver<(Pid, WaitStatus)>,
}

impl Program {
    fn start(start: Start, scratch: &Path) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("failed to find the path of this program")?;
        let (variables, network) = match &start {
            Start::Agent { variables, .. } => (variables.clone(), Some("--network")),
            Start::Command(_) | Start::Sandbox(_) => (BTreeMap::new(), None),
        };
        let command = start.command(&own, scratch);
        let mut child = Command::new(own)
            .args(["exec", "--parent", &getpid().as_raw_nonzero().to_string()])
            .args(network)
            .arg("--")
            .args(command)
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start a process for the command")?;
        let (stdin, stdout, stderr) = pipes(&mut child).context("a pipe is missing")?;
        let last_stderr_line = Arc::default();
        tokio::spawn(log(ChildStderr::from_std(stderr)?, Arc::clone(&last_stderr_line)));
        Ok(Self {
            pid: Pid::from_child(&child),
            stdin: Some(ChildStdin::from_std(stdin)?),
            stdout: BufReader::new(ChildStdout::from_std(stdout)?),
            last_stderr_line,
            ended: reaper(),
        })
    }

    /// Answers requests until the connection closes or the command ends.
    async fn converse(
        &mut self,
        requests: &mut BufReader<OwnedReadHalf>,
        answers: &mut OwnedWriteHalf,
    ) -> anyhow::Result<()> {
        loop {
            let Some(line) = read_line(requests, MAX_LINE).await? else { return Ok(()) };
            let answered = tokio::select! {
                answered = self.answer(&line) => answered?,
                // The coordinator sends nothing while it waits: it gave up.
                _ = requests.fill_buf() => return Ok(()),
            };
            let mut line = serde_json::to_vec(&answered)?;
            line.push(b'\n');
            answers.write_all(&line).await?;
            if !matches!(answered, Answer::Response(_)) {
                return Ok(());
            }
        }
    }

    /// Gives an agent its input and answers when it ends. Its standard output is discarded.
    async fn finish(
        &mut self,
        requests: &mut BufReader<OwnedReadHalf>,
        answers: &mut OwnedWriteHalf,
    ) -> anyhow::Result<()> {
        let Some(line) = read_line(requests, MAX_LINE).await? else { return Ok(()) };
        let answer = tokio::select! {
            answer = self.run(&line) => answer?,
            // The coordinator gave up.
            _ = requests.fill_buf() => return Ok(()),
        };
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        Ok(answers.write_all(&line).await?)
    }

    /// Gives an agent its input, and forwards its requests until it ends.
    async fn forward(
        &mut self,
        port: AgentPort,
        mut requests: BufReader<OwnedReadHalf>,
        answers: OwnedWriteHalf,
    ) -> anyhow::Result<()> {
        let Some(line) = read_line(&mut requests, MAX_LINE).await? else { return Ok(()) };
        port.forward(tokio::io::join(requests, answers), self.run(&line)).await
    }

    /// Writes the input of an agent and waits for its end.
    async fn run(&mut self, input: &[u8]) -> anyhow::Result<Answer> {
        self.write(input).await;
        self.stdin = None;
        // Ends when the agent and its descendants have closed it.
        let copied = tokio::io::copy(&mut self.stdout, &mut tokio::io::sink()).await;
        copied.context("failed to read standard output")?;
        Ok(self.exit().await)
    }

    /// Writes to standard input. An exit status says more than the error that it causes.
    async fn write(&mut self, bytes: &[u8]) {
        let Some(stdin) = &mut self.stdin else { return };
        let _ = stdin.write_all(bytes).await;
        let _ = stdin.flush().await;
    }

    async fn answer(&mut self, request: &[u8]) -> anyhow::Result<Answer> {
        let exchange = async {
            self.write(request).await;
            read_line(&mut self.stdout, MAX_RESPONSE).await
        };
        Ok(match exchange.await {
            Ok(Some(line)) => Answer::Response(String::from_utf8_lossy(&line).into_owned()),
            Ok(None) => self.exit().await,
            Err(error) => match error.downcast::<TooLong>() {
                Ok(TooLong(start)) => Answer::TooLong(start),
                Err(error) => return Err(error),
            },
        })
    }

    async fn exit(&mut self) -> Answer {
        let ended = async {
            loop {
                match self.ended.recv().await {
                    Some((pid, status)) if pid == self.pid => return Some(status),
                    Some(_) => {}
                    None => return None,
                }
            }
        };
        let status = tokio::time::timeout(EXIT_TIMEOUT, ended).await.ok().flatten();
        let status = status.map(|status| ExitStatus::from_raw(status.as_raw()));
        // The reader of standard error may be behind.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let stderr = self.last_stderr_line.lock().clone();
        match status {
            Some(status) if status.code() == Some(i32::from(NOT_STARTED)) => {
                Answer::NotStarted(stderr)
            }
            Some(status) => {
                let succeeded = status.success();
                Answer::Exited { status: status.to_string(), stderr, succeeded }
            }
            None => {
                let status = "closed standard output".to_owned();
                Answer::Exited { status, stderr, succeeded: false }
            }
        }
    }
}

type Pipes = (std::process::ChildStdin, std::process::ChildStdout, std::process::ChildStderr);

fn pipes(child: &mut Child) -> Option<Pipes> {
    Some((child.stdin.take()?, child.stdout.take()?, child.stderr.take()?))
}

/// A line that exceeds the limit; its start.
#[derive(Debug, thiserror::Error)]
#[error("a line is too long: {0}")]
struct TooLong(String);

/// Reads a line with its end; `None` at the end of the input.
async fn read_line(
    input: &mut (impl AsyncBufRead + Unpin),
    limit: usize,
) -> anyhow::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.take((limit as u64).saturating_add(1)).read_until(b'\n', &mut line).await?;
    if line.len() > limit {
        line.truncate(EXCERPT);
        return Err(TooLong(String::from_utf8_lossy(&line).into_owned()).into());
    }
    Ok((!line.is_empty()).then_some(line))
}

/// Copies standard error to this process's own, and keeps its last line.
async fn log(stderr: ChildStderr, last_line: Arc<Mutex<String>>) {
    let mut stderr = BufReader::new(stderr);
    let (mut line, mut second, mut lines) = (Vec::new(), tokio::time::Instant::now(), 0_u32);
    while matches!((&mut stderr).take(MAX_LOG_LINE).read_until(b'\n', &mut line).await, Ok(1..)) {
        if second.elapsed() >= Duration::from_secs(1) {
            (second, lines) = (tokio::time::Instant::now(), 0);
        }
        lines = lines.saturating_add(1);
        let text = String::from_utf8_lossy(&line).replace(char::is_control, " ");
        if !text.trim().is_empty() {
            if lines <= LOG_RATE {
                rljob_logging::print(text.trim());
            }
            text.trim().clone_into(&mut last_line.lock());
        }
        line.clear();
    }
}
