//! Hang detection: finds engines that answer polls but generate nothing, because their scheduler is
//! stuck. Pure: time is a parameter.
//!
//! A queued request may wait long without output, so single requests have no timeout. An engine
//! hangs if none of its requests receives output for [`HANG_TIMEOUT`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Exceeds the time to the first tokens of any batch of prompts.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum idle time that one check adds. Longer gaps mean that the checks paused, not the engine.
const MAX_CHECK_GAP: Duration = Duration::from_secs(5);

/// Output of an engine and the time since the last output.
#[derive(Debug)]
pub struct Progress {
    chunks: Arc<AtomicU64>,
    seen: u64,
    checked: Duration,
    idle: Duration,
}

impl Progress {
    pub fn new(now: Duration) -> Self {
        Self { chunks: Arc::default(), seen: 0, checked: now, idle: Duration::ZERO }
    }

    /// Counter of the chunks of all responses.
    pub fn chunks(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.chunks)
    }

    /// Checks for output, which is expected if `due`. Returns whether the engine hangs.
    pub fn hangs(&mut self, due: bool, now: Duration) -> bool {
        let (chunks, passed) = (
            self.chunks.load(Ordering::Relaxed),
            now.saturating_sub(self.checked).min(MAX_CHECK_GAP),
        );
        let idles = due && chunks == self.seen;
        self.idle = if idles { self.idle.saturating_add(passed) } else { Duration::ZERO };
        (self.seen, self.checked) = (chunks, now);
        self.idle >= HANG_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, HANG_TIMEOUT, MAX_CHECK_GAP, Ordering, Progress};

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn an_engine_hangs_after_the_timeout_without_output_while_output_is_due() {
        let mut progress = Progress::new(NOW);
        let seconds = |seconds: u64| NOW + Duration::from_secs(seconds);
        let hangs = |progress: &mut Progress, due, mut range: std::ops::RangeInclusive<u64>| {
            range.any(|second| progress.hangs(due, seconds(second)))
        };
        assert!(!hangs(&mut progress, false, 0..=500), "nothing is due");
        assert!(!hangs(&mut progress, true, 501..=619));
        progress.chunks().fetch_add(1, Ordering::Relaxed);
        assert!(!hangs(&mut progress, true, 620..=739), "a chunk resets the timeout");
        assert!(hangs(&mut progress, true, 740..=740));
        assert!(!hangs(&mut progress, false, 741..=741));
        assert!(
            !progress.hangs(true, seconds(741) + 10 * HANG_TIMEOUT),
            "a pause of the checks does not count"
        );
        assert_eq!(progress.idle, MAX_CHECK_GAP);
    }
}
