//! Sessions with the reward runner: long-lived processes that read a line and answer with a line.
//! The coordinator never runs them itself: the runner does, without access to its keys.
//!
//! ```text
//!  exchange ─▶ idle or new session ─ request line ─▶ rljob-reward-runner ─▶ stdin of the program
//!                                  ◀─ Answer ───────                     ◀─ stdout
//! ```
//!
//! The session of a program that times out or fails is closed, which kills the program with its
//! descendants, so that a late response is never read as the response to the next request. The call
//! of a verifier pod that is lost is repeated on another one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use serde::Serialize;

use crate::reward::call::{CallError, LostPods};
use crate::reward::connection::{Runner, Session};
use crate::reward::external::{MAX_RESPONSE, excerpt, too_long};
use crate::reward::pool::{Pool, Slot};
use crate::reward::session::{Answer, Start};
use crate::reward::verifier::VerifierError;

/// Processes of one program, each with one request at a time.
#[derive(Debug)]
pub struct Sessions {
    start: Start,
    pool: Pool,
    timeout: Duration,
    next_id: AtomicU64,
}

impl Sessions {
    /// Starts no process; `exchange` starts up to `processes` on demand, on each verifier pod.
    pub fn new(start: Start, runner: &Runner, timeout: Duration, processes: u32) -> Self {
        Self { start, pool: Pool::new(runner, processes), timeout, next_id: AtomicU64::new(0) }
    }

    /// Sends the request with its id and parses the response. A session whose response is invalid
    /// is closed.
    pub async fn exchange<R: Serialize, T>(
        &self,
        request: impl FnOnce(u64) -> R,
        parse: impl FnOnce(&[u8], u64) -> Result<T, VerifierError>,
    ) -> Result<T, VerifierError> {
        let _call = self.pool.begin();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let request = request(id);
        let mut lost = LostPods::default();
        loop {
            // The timeout starts after the wait for a slot.
            let mut slot = self.pool.acquire().await?;
            match self.call(&mut slot, &request).await {
                Ok((session, line)) => {
                    let parsed = parse(line.as_bytes(), id)?;
                    slot.keep(session);
                    return Ok(parsed);
                }
                Err(error) => {
                    if let Some(error) = slot.failed(error, &mut lost) {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn call(
        &self,
        slot: &mut Slot<'_>,
        request: &impl Serialize,
    ) -> Result<(Session, String), CallError> {
        let idle = slot.idle.take();
        // The session may have ended while it was idle, with a runner that restarted.
        let lost = if idle.is_some() { CallError::NotOpened } else { CallError::Lost };
        let exchange = async {
            let mut session = match idle {
                Some(session) => session,
                None => slot.open(&self.start).await?,
            };
            let answer = session.exchange(request).await.map_err(lost)?;
            Ok((session, line(answer).map_err(CallError::Failed)?))
        };
        slot.limit(self.timeout, exchange).await
    }
}

/// The line of a response.
pub fn line(answer: Answer) -> Result<String, VerifierError> {
    match answer {
        Answer::Response(line) => Ok(line),
        Answer::TooLong(start) => Err(too_long(start.as_bytes(), MAX_RESPONSE)),
        Answer::NotStarted(cause) => Err(VerifierError::Start(cause)),
        Answer::Exited { status, stderr, .. } => {
            Err(VerifierError::Exited { status, stderr: excerpt(stderr.as_bytes()) })
        }
    }
}

/// Runs the program of an agent on the runner of `slot` until it exits with 0, for at most
/// `timeout`. Dropping the future kills it. `proxy` answers the requests that the session forwards.
pub async fn run_agent(
    slot: &Slot<'_>,
    start: &Start,
    input: &impl Serialize,
    proxy: Router,
    timeout: Duration,
) -> Result<(), CallError> {
    let run = async {
        let mut session = slot.open(start).await?;
        let answer = match start {
            Start::Agent { is_forwarded: true, .. } => session.serve(input, proxy).await,
            _ => session.exchange(input).await,
        };
        match answer.map_err(CallError::Lost)? {
            Answer::Exited { succeeded: true, .. } => Ok(()),
            answer => Err(CallError::Failed(match line(answer) {
                Ok(line) => too_long(line.as_bytes(), MAX_RESPONSE),
                Err(error) => error,
            })),
        }
    };
    slot.limit(timeout, run).await
}
