//! Command reward: long-lived processes that read one JSON line per completion and answer with one.
//!
//! ```text
//!  score ─▶ idle or new process ─ request line ─▶ stdin
//!                               ◀─ response line ─ stdout
//!           log, last line ◀────────────────────── stderr
//! ```
//!
//! A process that times out or answers invalidly is killed, so that a late response is never read
//! as the response to the next request.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use parking_lot::{Mutex, MutexGuard};
use rljob_crds::reward::CommandReward;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::reward::external::{MAX_RESPONSE, Request, excerpt, parse, too_long};
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

/// Maximum wait for the exit status and the standard error of a process that closed its output.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a logged line of standard error in bytes.
const MAX_LOG_LINE: u64 = 4096;

#[derive(Debug)]
pub struct CommandVerifier {
    command: Vec<String>,
    timeout: Duration,
    retries: u32,
    slots: Semaphore,
    idle: Mutex<Vec<Process>>,
    next_id: AtomicU64,
}

impl CommandVerifier {
    /// Starts no process; `score` starts them on demand.
    pub fn new(spec: &CommandReward) -> Self {
        Self {
            command: spec.command.clone(),
            timeout: Duration::from_secs(u64::from(spec.timeout_seconds)),
            retries: spec.retries,
            slots: Semaphore::new(spec.processes as usize),
            idle: Mutex::default(),
            next_id: AtomicU64::new(0),
        }
    }

    async fn request(&self, question: Question<'_>) -> Result<Score, VerifierError> {
        // The semaphore is never closed. The timeout starts after the wait for a slot.
        let _slot = self.slots.acquire().await.ok();
        let idle = self.idle().pop();
        let mut process = match idle {
            Some(process) => process,
            None => Process::start(&self.command)?,
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let response = tokio::time::timeout(self.timeout, process.request(id, question)).await;
        let score = response.unwrap_or(Err(VerifierError::Timeout(self.timeout)))?;
        self.idle().push(process);
        Ok(score)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Process>> {
        self.idle.lock()
    }
}

impl Verifier for CommandVerifier {
    fn description(&self) -> String {
        format!("command {}", self.command.join(" "))
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        self.request(question).boxed()
    }

    fn retries(&self) -> u32 {
        self.retries
    }
}

/// A running process of the command; killed on drop.
#[derive(Debug)]
struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    last_stderr_line: Arc<Mutex<String>>,
    log: JoinHandle<()>,
}

impl Process {
    fn start(command: &[String]) -> Result<Self, VerifierError> {
        let missing =
            || VerifierError::Start(std::io::Error::from(std::io::ErrorKind::InvalidInput));
        let (program, arguments) = command.split_first().ok_or_else(missing)?;
        let mut child = tokio::process::Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(VerifierError::Start)?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (stdin, stdout, stderr) =
            (stdin.ok_or_else(missing)?, stdout.ok_or_else(missing)?, stderr.ok_or_else(missing)?);
        let last_stderr_line = Arc::default();
        let log = tokio::spawn(log(program.clone(), stderr, Arc::clone(&last_stderr_line)));
        Ok(Self { child, stdin, stdout: BufReader::new(stdout), last_stderr_line, log })
    }

    async fn request(&mut self, id: u64, question: Question<'_>) -> Result<Score, VerifierError> {
        let mut line = serde_json::to_vec(&Request::new(Some(id), question))
            .map_err(|error| VerifierError::Pipe(error.into()))?;
        line.push(b'\n');
        let send = async {
            self.stdin.write_all(&line).await?;
            self.stdin.flush().await
        };
        // An exit status says more than the write error that it causes, so read before returning.
        let sent = send.await;
        let mut response = Vec::new();
        let mut limited = (&mut self.stdout).take(MAX_RESPONSE as u64 + 1);
        let read = limited.read_until(b'\n', &mut response).await.map_err(VerifierError::Pipe)?;
        if read == 0 {
            return Err(self.exit_error().await);
        }
        sent.map_err(VerifierError::Pipe)?;
        if read > MAX_RESPONSE {
            return Err(too_long(&response));
        }
        parse(&response, Some(id))
    }

    async fn exit_error(&mut self) -> VerifierError {
        let status = match tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => return VerifierError::Pipe(error),
            Err(_) => "closed standard output".to_owned(),
        };
        let _ = tokio::time::timeout(EXIT_TIMEOUT, &mut self.log).await;
        let stderr = self.last_stderr_line.lock().clone();
        VerifierError::Exited { status, stderr }
    }
}

/// Logs standard error and keeps its last line.
async fn log(program: String, stderr: ChildStderr, last_line: Arc<Mutex<String>>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while matches!((&mut stderr).take(MAX_LOG_LINE).read_until(b'\n', &mut line).await, Ok(1..)) {
        let text = excerpt(&line);
        if !text.is_empty() {
            tracing::info!(program, "{text}");
            *last_line.lock() = text;
        }
        line.clear();
    }
}
