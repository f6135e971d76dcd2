//! Calls of an open session: answers them while its program runs.
//!
//! ```text
//!  proxy ── Call ─▶ plan ─▶ completions side by side ─▶ recorded in Progress ── reply ─▶ proxy
//! ```

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use super::progress::Progress;
use super::session::Session;
use crate::proxy::{self, Answer, Reply};
use crate::work_error::WorkError;

/// Requests of a session that are sampled at the same time. Others wait.
const CONCURRENT: usize = 32;

/// Answers the calls of `opened` until `program` ends. Returns its output and what the session has
/// recorded. At most `max_turns` completions are sampled.
///
/// # Errors
/// A completion failed for a cause outside its request.
pub async fn answer<P: Future>(
    opened: &mut proxy::Session,
    session: Session<'_>,
    max_turns: u32,
    program: P,
) -> Result<(P::Output, Progress), WorkError> {
    let mut program = std::pin::pin!(program);
    let mut progress = Progress::default();
    let mut in_progress = FuturesUnordered::new();
    let ended = loop {
        tokio::select! {
            ended = &mut program => break ended,
            Some(done) = in_progress.next() => {
                let (parent, sampling, reply): (_, Result<_, WorkError>, Reply<_>) = done;
                // A client that has gone gets no answer.
                let _ = reply.send(progress.record(parent, sampling?));
            }
            Some(call) = opened.calls.recv(), if in_progress.len() < CONCURRENT => {
                if let Some((planned, answer)) = progress.answer(max_turns, call) {
                    let Answer { partial, reply } = answer;
                    let parent = planned.parent;
                    in_progress.push(async move {
                        (parent, session.complete(planned, &partial).await, reply)
                    });
                }
            }
        }
    };
    Ok((ended, progress))
}
