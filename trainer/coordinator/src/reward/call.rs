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
    /// The newest order does not list the pod. The program is not the cause.
    Removed,
    Failed(VerifierError),
}

/// Pods that a call has lost so far.
#[derive(Debug, Default)]
pub struct LostPods {
    lost: u32,
    /// The first of the failures to open a session that nothing else has interrupted.
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
            CallError::Removed => {
                self.unopened_since = None;
                None
            }
            CallError::Lost(error) => {
                self.unopened_since = None;
                self.lost = self.lost.saturating_add(1);
                (self.lost >= MAX_LOST_PODS).then(|| VerifierError::LostPods(Box::new(error)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> VerifierError {
        VerifierError::Runner(std::io::Error::other("no connection"))
    }

    /// Moves the failures so far into the past.
    fn wait(lost: &mut LostPods) {
        lost.unopened_since =
            lost.unopened_since.map(|since| since.checked_sub(POD_TIMEOUT).unwrap());
    }

    #[test]
    fn pods_are_unavailable_if_no_session_opens_for_the_timeout() {
        let mut lost = LostPods::default();
        assert!(lost.add(CallError::NotOpened(error())).is_none());
        wait(&mut lost);
        let found = lost.add(CallError::NotOpened(error())).unwrap();
        assert!(found.is_outage(), "{found}");
    }

    #[test]
    fn lost_and_removed_pods_interrupt_failures_to_open_a_session() {
        for interruption in [CallError::Removed, CallError::Lost(error())] {
            let mut lost = LostPods::default();
            assert!(lost.add(CallError::NotOpened(error())).is_none());
            wait(&mut lost);
            assert!(lost.add(interruption).is_none());
            assert!(lost.add(CallError::NotOpened(error())).is_none());
        }
    }

    #[test]
    fn a_call_may_lose_two_pods_and_any_number_of_removed_ones() {
        let mut lost = LostPods::default();
        for _ in 0..MAX_LOST_PODS {
            assert!(lost.add(CallError::Removed).is_none());
        }
        for _ in 1..MAX_LOST_PODS {
            assert!(lost.add(CallError::Lost(error())).is_none());
        }
        let found = lost.add(CallError::Lost(error())).unwrap();
        assert!(matches!(found, VerifierError::LostPods(_)), "{found}");
    }
}
