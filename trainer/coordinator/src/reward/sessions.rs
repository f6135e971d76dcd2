//! Sessions with the reward runner: long-lived processes that read a line and answer with a line.
//! The coordinator never runs them itself: the runner does, without access to its keys.
//!
//! ```text
//!  exchange ─▶ idle or new session ─ request line ─▶ rljob-reward-runner ─▶ stdin of the program
//!                                  ◀─ Answer ───────                     ◀─ stdout
//! ```
//!
//! The session of a program that times out or fails is closed, which kills the program with its
//! descendants, so that a late response is never read as the response to the next request.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Semaphore;

use crate::reward::external::{MAX_RESPONSE, excerpt, too_long};
use crate::reward::session::{Answer, MAX_LINE, Start, environment};
use crate::reward::verifier::VerifierError;

/// Where programs run.
#[derive(Clone, Debug)]
pub enum Runner {
    /// Socket of the runner in another container of the pod.
    Socket(PathBuf),
    /// Program of the runner on this machine.
    Program(PathBuf),
}

/// Processes of one program, each with one request at a time.
#[derive(Debug)]
pub struct Sessions {
    start: Start,
    runner: Runner,
    timeout: Duration,
    slots: Semaphore,
    idle: Mutex<Vec<Session>>,
    next_id: AtomicU64,
}

impl Sessions {
    /// Starts no process; `exchange` starts up to `processes` on demand.
    pub fn new(start: Start, runner: &Runner, timeout: Duration, processes: u32) -> Self {
        Self {
            start,
            runner: runner.clone(),
            timeout,
            slots: Semaphore::new(processes as usize),
            idle: Mutex::default(),
            next_id: AtomicU64::new(0),
        }
    }

    /// Sends the request with its id and parses the response. A session whose response is invalid
    /// is closed.
    pub async fn exchange<R: Serialize, T>(
        &self,
        request: impl FnOnce(u64) -> R,
        parse: impl FnOnce(&[u8], u64) -> Result<T, VerifierError>,
    ) -> Result<T, VerifierError> {
        // The semaphore is never closed. The timeout starts after the wait for a slot.
        let _slot = self.slots.acquire().await.ok();
        let idle = self.idle.lock().pop();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let exchange = async {
            let mut session = match idle {
                Some(session) => session,
                None => Session::open(&self.runner, &self.start).await?,
            };
            let line = session.request(&request(id)).await?;
            Ok((session, parse(line.as_bytes(), id)?))
        };
        let exchanged = tokio::time::timeout(self.timeout, exchange).await;
        let (session, parsed) = exchanged.unwrap_or(Err(VerifierError::Timeout(self.timeout)))?;
        self.idle.lock().push(session);
        Ok(parsed)
    }
}

/// Runs the program of an agent until it exits with 0. Dropping the future kills it.
pub async fn run_agent(
    runner: &Runner,
    start: &Start,
    input: &impl Serialize,
) -> Result<(), VerifierError> {
    let mut session = Session::open(runner, start).await?;
    match session.exchange(input).await? {
        Answer::Exited { succeeded: true, .. } => Ok(()),
        Answer::Exited { status, stderr, .. } => {
            Err(VerifierError::Exited { status, stderr: excerpt(stderr.as_bytes()) })
        }
        Answer::NotStarted(cause) => Err(VerifierError::Start(cause)),
        Answer::Response(line) | Answer::TooLong(line) => {
            Err(too_long(line.as_bytes(), MAX_RESPONSE))
        }
    }
}

/// A running process. Dropping it closes the connection.
#[derive(Debug)]
struct Session {
    requests: OwnedWriteHalf,
    answers: BufReader<OwnedReadHalf>,
}

impl Session {
    async fn open(runner: &Runner, program: &Start) -> Result<Self, VerifierError> {
        let (stream, path) = match runner {
            Runner::Socket(path) => (UnixStream::connect(path).await, path),
            Runner::Program(path) => (start(path, program), path),
        };
        let stream = stream.map_err(|error| {
            VerifierError::Runner(std::io::Error::other(format!("{}: {error}", path.display())))
        })?;
        let (answers, requests) = stream.into_split();
        let mut session = Self { requests, answers: BufReader::new(answers) };
        session.send(program).await?;
        Ok(session)
    }

    /// Sends a request and returns the line of the response.
    async fn request(&mut self, request: &impl Serialize) -> Result<String, VerifierError> {
        match self.exchange(request).await? {
            Answer::Response(line) => Ok(line),
            Answer::TooLong(start) => Err(too_long(start.as_bytes(), MAX_RESPONSE)),
            Answer::NotStarted(cause) => Err(VerifierError::Start(cause)),
            Answer::Exited { status, stderr, .. } => {
                Err(VerifierError::Exited { status, stderr: excerpt(stderr.as_bytes()) })
            }
        }
    }

    async fn exchange(&mut self, request: &impl Serialize) -> Result<Answer, VerifierError> {
        self.send(request).await?;
        let mut line = Vec::new();
        let mut limited = (&mut self.answers).take(MAX_LINE as u64);
        limited.read_until(b'\n', &mut line).await.map_err(VerifierError::Pipe)?;
        serde_json::from_slice(&line)
            .map_err(|error| VerifierError::Runner(std::io::Error::other(error)))
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
fn start(program: &PathBuf, start: &Start) -> std::io::Result<UnixStream> {
    let (own, other) = UnixStream::pair()?;
    let other = OwnedFd::from(other.into_std()?);
    // The runtime collects its exit status.
    let _child = tokio::process::Command::new(program)
        .arg("session")
        .args(matches!(start, Start::Agent { .. }).then_some("--network"))
        .env_clear()
        .envs(environment())
        .stdin(Stdio::from(other))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(own)
}
