//! `reward.command`: a program of the user's own, in a few long-lived copies. One JSON line in, one
//! out, one at a time.
//!
//! ```text
//!  score ─▶ idle copy, or a new one ─ request line ─▶ stdin
//!                                    ◀─ answer line ── stdout
//!           log, last words ◀────────────────────────── stderr
//! ```
//!
//! A copy that answers late, wrongly or not at all is killed: an answer is never taken for another
//! question's.

use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rljob_crds::reward::CommandReward;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::remote::{MAX_ANSWER, Request, TryError, excerpt, parse};
use super::{Question, Reward};

/// How long a program that closed its output may take to end, and its last words to arrive.
const ENDING: Duration = Duration::from_secs(2);
/// Longest line of standard error that is logged whole.
const LOG_LINE: u64 = 4096;

/// A program.
#[derive(Debug)]
pub struct Command {
    program: Vec<String>,
    timeout: Duration,
    slots: Semaphore,
    idle: Mutex<Vec<Process>>,
    next_id: AtomicU64,
}

impl Command {
    /// The program that the spec names; it is started when it is first needed.
    pub fn new(spec: &CommandReward) -> Self {
        Self {
            program: spec.command.clone(),
            timeout: Duration::from_secs(u64::from(spec.timeout_seconds)),
            slots: Semaphore::new(spec.processes as usize),
            idle: Mutex::default(),
            next_id: AtomicU64::new(0),
        }
    }

    /// One try. Its time begins when a copy is free.
    pub async fn score(&self, question: Question<'_>) -> Result<Reward, TryError> {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.ok();
        let idle = self.idle().pop();
        let mut process = match idle {
            Some(process) => process,
            None => Process::start(&self.program)?,
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let asked = tokio::time::timeout(self.timeout, process.ask(id, question)).await;
        let reward = asked.unwrap_or(Err(TryError::Slow(self.timeout)))?;
        self.idle().push(process);
        Ok(reward)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Process>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A copy of the program. It is killed when it is dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    last_words: Arc<Mutex<String>>,
    log: JoinHandle<()>,
}

impl Process {
    fn start(command: &[String]) -> Result<Self, TryError> {
        let missing = || TryError::Start(std::io::Error::from(std::io::ErrorKind::InvalidInput));
        let (program, arguments) = command.split_first().ok_or_else(missing)?;
        let mut child = tokio::process::Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(TryError::Start)?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (stdin, stdout, stderr) =
            (stdin.ok_or_else(missing)?, stdout.ok_or_else(missing)?, stderr.ok_or_else(missing)?);
        let last_words = Arc::default();
        let log = tokio::spawn(log(program.clone(), stderr, Arc::clone(&last_words)));
        Ok(Self { child, stdin, stdout: BufReader::new(stdout), last_words, log })
    }

    async fn ask(&mut self, id: u64, question: Question<'_>) -> Result<Reward, TryError> {
        let mut line = serde_json::to_vec(&Request::new(Some(id), question))
            .map_err(|error| TryError::Pipe(error.into()))?;
        line.push(b'\n');
        let sent = async {
            self.stdin.write_all(&line).await?;
            self.stdin.flush().await
        };
        // What a program that ended could not read is less telling than how it ended.
        let sent = sent.await;
        let mut answer = Vec::new();
        let mut limited = (&mut self.stdout).take(MAX_ANSWER as u64 + 1);
        let read = limited.read_until(b'\n', &mut answer).await.map_err(TryError::Pipe)?;
        if read == 0 {
            return Err(self.ended().await);
        }
        sent.map_err(TryError::Pipe)?;
        if read > MAX_ANSWER {
            return Err(TryError::nonsense(&answer, &format!("longer than {MAX_ANSWER} bytes")));
        }
        parse(&answer, Some(id))
    }

    async fn ended(&mut self) -> TryError {
        let status = match tokio::time::timeout(ENDING, self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => return TryError::Pipe(error),
            Err(_) => "its standard output closed".to_owned(),
        };
        let _ = tokio::time::timeout(ENDING, &mut self.log).await;
        TryError::Exited {
            status,
            stderr: self.last_words.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// Logs standard error and keeps its last line.
async fn log(program: String, stderr: ChildStderr, last_words: Arc<Mutex<String>>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while matches!((&mut stderr).take(LOG_LINE).read_until(b'\n', &mut line).await, Ok(1..)) {
        let text = excerpt(&line);
        if !text.is_empty() {
            tracing::info!(program, "{text}");
            *last_words.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }
        line.clear();
    }
}
