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

use serde::Serialize;
use tokio::time::Instant;

use crate::reward::connection::{Runner, Session};
use crate::reward::external::{MAX_RESPONSE, excerpt, too_long};
use crate::reward::pool::{POD_TIMEOUT, Pool, Slot};
use crate::reward::session::{Answer, Start};
use crate::reward::verifier::VerifierError;

/// Pods that a call may lose. A program may be the cause, for example by its use of memory.
const MAX_LOST_PODS: u32 = 3;

/// Processes of one program, each with one request at a time.
#[derive(Debug)]
pub struct Sessions {
    start: Start,
    pool: Pool,
    timeout: Duration,
    next_id: AtomicU64,
}

/// The failure of a call in a session.
enum CallError {
    /// The pod has no session, and the call did not begin.
    NotOpened(VerifierError),
    /// The pod is gone, or its runner.
    Lost(VerifierError),
    Failed(VerifierError),
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
        let (mut lost, mut unopened_since) = (0_u32, None);
        loop {
            // The timeout starts after the wait for a slot.
            let mut slot = self.pool.acquire().await?;
            let error = match self.call(&mut slot, &request).await {
                Ok((session, line)) => {
                    let parsed = parse(line.as_bytes(), id)?;
                    slot.keep(session);
                    return Ok(parsed);
                }
                Err(CallError::Failed(error)) => return Err(error),
                Err(CallError::NotOpened(error)) => {
                    let since = *unopened_since.get_or_insert_with(Instant::now);
                    (since.elapsed() >= POD_TIMEOUT).then_some(error)
                }
                Err(CallError::Lost(error)) => {
                    lost = lost.saturating_add(1);
                    (lost >= MAX_LOST_PODS).then(|| VerifierError::LostPods(Box::new(error)))
                }
            };
            slot.lost();
            if let Some(error) = error {
                return Err(error);
            }
        }
    }

    async fn call(
        &self,
        slot: &mut Slot<'_>,
        request: &impl Serialize,
    ) -> Result<(Session, String), CallError> {
        let (idle, pod) = (slot.idle.take(), slot.pod.clone());
        let is_new = idle.is_none();
        let exchange = async {
            let mut session = if let Some(session) = idle {
                session
            } else {
                let opened = Session::open(self.pool.runner(), pod.as_deref(), &self.start);
                opened.await.map_err(CallError::NotOpened)?
            };
            let answer = session.exchange(request).await.map_err(CallError::Lost)?;
            Ok((session, line(answer).map_err(CallError::Failed)?))
        };
        let timed = tokio::time::timeout(self.timeout, exchange);
        let Some(pod) = &pod else {
            return match timed.await {
                Ok(Err(CallError::NotOpened(error) | CallError::Lost(error))) => {
                    Err(CallError::Failed(error))
                }
                Ok(result) => result,
                Err(_) => Err(CallError::Failed(VerifierError::Timeout(self.timeout))),
            };
        };
        let removed = || std::io::Error::other(format!("verifier pod {} is gone", pod.name()));
        tokio::select! {
            result = timed => match result {
                // The session may have ended while it was idle, with a runner that restarted.
                Ok(Err(CallError::Lost(error))) if !is_new => Err(CallError::NotOpened(error)),
                Ok(result) => result,
                Err(_) => Err(CallError::Failed(VerifierError::Timeout(self.timeout))),
            },
            () = pod.removed.cancelled() => {
                Err(CallError::NotOpened(VerifierError::Runner(removed())))
            }
        }
    }
}

/// The line of a response.
fn line(answer: Answer) -> Result<String, VerifierError> {
    match answer {
        Answer::Response(line) => Ok(line),
        Answer::TooLong(start) => Err(too_long(start.as_bytes(), MAX_RESPONSE)),
        Answer::NotStarted(cause) => Err(VerifierError::Start(cause)),
        Answer::Exited { status, stderr, .. } => {
            Err(VerifierError::Exited { status, stderr: excerpt(stderr.as_bytes()) })
        }
    }
}

/// Runs the program of an agent until it exits with 0. Dropping the future kills it.
pub async fn run_agent(
    runner: &Runner,
    start: &Start,
    input: &impl Serialize,
) -> Result<(), VerifierError> {
    let mut session = Session::open(runner, None, start).await?;
    match session.exchange(input).await? {
        Answer::Exited { succeeded: true, .. } => Ok(()),
        answer => Err(match line(answer) {
            Ok(line) => too_long(line.as_bytes(), MAX_RESPONSE),
            Err(error) => error,
        }),
    }
}
