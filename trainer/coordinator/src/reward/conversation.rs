//! Conversation with a program: one process answers lines that depend on those before. A process
//! that fails, or whose pod is lost, is started again and gets the lines so far.
//!
//! ```text
//!  add ─▶ lines ─▶ process, started on demand ─▶ response to the newest line
//!           ▲         │ failed: killed              earlier ones are repeated and dropped
//!           └─────────┘
//! ```
//!
//! Dropping a conversation kills its process with all descendants.

use std::time::Duration;

use serde_json::Value;

use crate::reward::call::{CallError, LostPods};
use crate::reward::connection::{Runner, Session};
use crate::reward::pool::{Pool, Slot};
use crate::reward::session::Start;
use crate::reward::sessions::line;
use crate::reward::verifier::VerifierError;
use crate::reward::verifier_pods::Counted;

/// Processes of one program, each for one conversation at a time.
#[derive(Debug)]
pub struct Conversations {
    start: Start,
    pool: Pool,
    /// For each line.
    timeout: Duration,
}

/// The lines of a conversation, and its process.
#[derive(Debug)]
pub struct Conversation<'c> {
    of: &'c Conversations,
    lines: Vec<Value>,
    running: Option<Running<'c>>,
    _call: Option<Counted>,
}

/// A process, and the number of lines that it has answered.
#[derive(Debug)]
struct Running<'c> {
    slot: Slot<'c>,
    session: Option<Session>,
    answered: usize,
}

impl Conversations {
    /// Starts no process; conversations start up to `processes` on demand, on each verifier pod.
    pub fn new(command: Vec<String>, runner: &Runner, timeout: Duration, processes: u32) -> Self {
        Self { start: Start::Command(command), pool: Pool::new(runner, processes), timeout }
    }

    /// A conversation without lines.
    pub fn begin(&self) -> Conversation<'_> {
        Conversation { of: self, lines: Vec::new(), running: None, _call: self.pool.begin() }
    }

    /// Sends the lines that the process has not answered, and returns the response to the last.
    async fn answer(
        &self,
        running: &mut Running<'_>,
        lines: &[Value],
    ) -> Result<Vec<u8>, CallError> {
        let mut last = None;
        for request in lines.iter().skip(running.answered) {
            let Running { slot, session, answered } = running;
            let open = session.take();
            let exchange = async {
                let mut session = match open {
                    Some(session) => session,
                    None => slot.open(&self.start).await?,
                };
                let answer = session.exchange(request).await.map_err(CallError::Lost)?;
                Ok((session, line(answer).map_err(CallError::Failed)?))
            };
            let (open, response) = slot.limit(self.timeout, exchange).await?;
            *session = Some(open);
            *answered = answered.saturating_add(1);
            last = Some(response);
        }
        let ended = || VerifierError::Pipe(std::io::ErrorKind::UnexpectedEof.into());
        last.map(String::into_bytes).ok_or_else(|| CallError::Failed(ended()))
    }
}

impl Conversation<'_> {
    /// Adds a line, which the next response answers.
    pub fn add(&mut self, line: Value) {
        self.lines.push(line);
    }

    /// The response to the newest line. After an error, it can be called again: another process
    /// then gets the lines so far.
    pub async fn response<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<T, VerifierError>,
    ) -> Result<T, VerifierError> {
        let mut lost = LostPods::default();
        loop {
            // The timeout starts after the wait for a slot.
            let mut running = match self.running.take() {
                Some(running) => running,
                None => Running { slot: self.of.pool.acquire().await?, session: None, answered: 0 },
            };
            match self.of.answer(&mut running, &self.lines).await {
                Ok(response) => {
                    let parsed = parse(&response)?;
                    self.running = Some(running);
                    return Ok(parsed);
                }
                Err(error) => {
                    if let Some(error) = running.slot.failed(error, &mut lost) {
                        return Err(error);
                    }
                }
            }
        }
    }
}
