//! Failures of calls of programs: those that lose their pod are repeated on another one.

use std::time::Duration;

use tokio::time::Instant;

use crate::reward::verifier::VerifierError;

/// Time for which a call waits for a pod before the pods count as unavailable.
pub const POD_TIMEOUT: Duration = Duration::from_secs(30);
/// Pods that a call may lose. A program may be the cause, for example by its use of memory.
const MAX_LOST_PODS: u32 = 3;

/// The failure of a call in a session.
#[derive(Debug)]
pub enum CallError {
    /// The pod has no session, and the call did not begin.
    NotOpened(VerifierError),
    /// The pod is gone, or its runner.
    Lost(VerifierError),
    Failed(VerifierError),
}

/// Pods that a call has lost so far.
#[derive(Debug, Default)]
pub struct LostPods {
    lost: u32,
    unopened_since: Option<Instant>,
}

impl LostPods {
    /// The error that ends the call; none if another pod repeats it.
    pub fn add(&mut self, error: CallError) -> Option<VerifierError> {
        match error {
            CallError::Failed(error) => Some(error),
            CallError::NotOpened(error) => {
                let since = *self.unopened_since.get_or_insert_with(Instant::now);
                (since.elapsed() >= POD_TIMEOUT).then_some(error)
            }
            CallError::Lost(error) => {
                self.lost = self.lost.saturating_add(1);
                (self.lost >= MAX_LOST_PODS).then(|| VerifierError::LostPods(Box::new(error)))
            }
        }
    }
}
