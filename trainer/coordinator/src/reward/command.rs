//! Command reward: long-lived processes that read one JSON line per completion and answer with one.
//! The coordinator never runs them itself: the reward runner does, without access to its keys.
//!
//! ```text
//!  score ─▶ idle or new session ─ request line ─▶ rljob-reward-runner ─▶ stdin of the command
//!                               ◀─ Answer ───────                     ◀─ stdout
//! ```
//!
//! The session of a command that times out or answers invalidly is closed, which kills the command
//! with its descendants, so that a late response is never read as the response to the next request.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use parking_lot::{Mutex, MutexGuard};
use rljob_crds::reward::CommandReward;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Semaphore;

use crate::reward::external::{Request, excerpt, parse, too_long};
use crate::reward::session::{Answer, MAX_LINE, Start, environment};
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

/// Where commands run.
#[derive(Clone, Debug)]
pub enum Runner {
    /// Socket of the runner in another container of the pod.
    Socket(PathBuf),
    /// Program of the runner on this machine.
    Program(PathBuf),
}

#[derive(Debug)]
pub struct CommandVerifier {
    command: Vec<String>,
    runner: Runner,
    timeout: Duration,
    retries: u32,
    slots: Semaphore,
    idle: Mutex<Vec<Session>>,
    next_id: AtomicU64,
}

impl CommandVerifier {
    /// Starts no process; `score` starts them on demand.
    pub fn new(spec: &CommandReward, runner: &Runner) -> Self {
        Self {
            command: spec.command.clone(),
            runner: runner.clone(),
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
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let exchange = async {
            let mut session = match idle {
                Some(session) => session,
                None => Session::open(&self.runner, &self.command).await?,
            };
            let score = session.request(id, question).await?;
            Ok((session, score))
        };
        let exchanged = tokio::time::timeout(self.timeout, exchange).await;
        let (session, score) = exchanged.unwrap_or(Err(VerifierError::Timeout(self.timeout)))?;
        self.idle().push(session);
        Ok(score)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
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

/// A running process of the command. Dropping it closes the connection.
#[derive(Debug)]
struct Session {
    requests: OwnedWriteHalf,
    answers: BufReader<OwnedReadHalf>,
}

impl Session {
    async fn open(runner: &Runner, command: &[String]) -> Result<Self, VerifierError> {
        let (stream, path) = match runner {
            Runner::Socket(path) => (UnixStream::connect(path).await, path),
            Runner::Program(program) => (start(program), program),
        };
        let stream = stream.map_err(|error| {
            VerifierError::Runner(std::io::Error::other(format!("{}: {error}", path.display())))
        })?;
        let (answers, requests) = stream.into_split();
        let mut session = Self { requests, answers: BufReader::new(answers) };
        session.send(&Start { command: command.to_vec() }).await?;
        Ok(session)
    }

    async fn request(&mut self, id: u64, question: Question<'_>) -> Result<Score, VerifierError> {
        self.send(&Request::new(Some(id), question)).await?;
        let mut line = Vec::new();
        let mut limited = (&mut self.answers).take(MAX_LINE as u64);
        limited.read_until(b'\n', &mut line).await.map_err(VerifierError::Pipe)?;
        let answer = serde_json::from_slice(&line)
            .map_err(|error| VerifierError::Runner(std::io::Error::other(error)))?;
        match answer {
            Answer::Response(line) => parse(line.as_bytes(), Some(id)),
            Answer::TooLong(start) => Err(too_long(start.as_bytes())),
            Answer::NotStarted(cause) => Err(VerifierError::Start(cause)),
            Answer::Exited { status, stderr } => {
                Err(VerifierError::Exited { status, stderr: excerpt(stderr.as_bytes()) })
            }
        }
    }

    async fn send(&mut self, message: &impl Serialize) -> Result<(), VerifierError> {
        let mut line =
            serde_json::to_vec(message).map_err(|error| VerifierError::Pipe(error.into()))?;
        line.push(b'\n');
        self.requests.write_all(&line).await.map_err(VerifierError::Pipe)
    }
}

/// Starts a session on this machine. It ends, and kills its command, when the connection closes.
/// The command can read the session's environment, which must not contain keys.
fn start(program: &PathBuf) -> std::io::Result<UnixStream> {
    let (own, other) = UnixStream::pair()?;
    let other = OwnedFd::from(other.into_std()?);
    // The runtime collects its exit status.
    let _child = tokio::process::Command::new(program)
        .arg("session")
        .env_clear()
        .envs(environment())
        .stdin(Stdio::from(other))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(own)
}
