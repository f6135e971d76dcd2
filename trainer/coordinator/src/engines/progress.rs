//! An engine that takes requests and generates nothing, though it answers when it is asked how it
//! is: the server lives and its scheduler does not. Pure: time is a parameter.
//!
//! Requests that wait in a queue hear nothing for long, so that no single request tells; an engine
//! of whose requests none has heard anything for [`PATIENCE`] hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longer than the first tokens of any batch of prompts take.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// More time between two looks than this says that nobody looked, and not that nothing came.
const GLANCE: Duration = Duration::from_secs(5);

/// What has come from an engine, and for how long nothing has.
#[derive(Debug)]
pub struct Progress {
    chunks: Arc<AtomicU64>,
    seen: u64,
    looked: Duration,
    idle: Duration,
}

impl Progress {
    /// Of an engine that is listed now.
    pub fn new(now: Duration) -> Self {
        Self { chunks: Arc::default(), seen: 0, looked: now, idle: Duration::ZERO }
    }

    /// Counts the chunks of all answers of the engine.
    pub fn chunks(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.chunks)
    }

    /// Looks once, while something is `due` from the engine or not. Answers whether it hangs.
    pub fn hangs(&mut self, due: bool, now: Duration) -> bool {
        let (chunks, passed) =
            (self.chunks.load(Ordering::Relaxed), now.saturating_sub(self.looked).min(GLANCE));
        self.idle = if due && chunks == self.seen { self.idle + passed } else { Duration::ZERO };
        (self.seen, self.looked) = (chunks, now);
        self.idle >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, GLANCE, Ordering, PATIENCE, Progress};

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn an_engine_hangs_when_nothing_comes_of_all_that_is_due_for_as_long_as_somebody_looked() {
        let mut progress = Progress::new(NOW);
        let seconds = |seconds: u64| NOW + Duration::from_secs(seconds);
        let hangs = |progress: &mut Progress, due, mut range: std::ops::RangeInclusive<u64>| {
            range.any(|second| progress.hangs(due, seconds(second)))
        };
        assert!(!hangs(&mut progress, false, 0..=500), "nothing is due");
        assert!(!hangs(&mut progress, true, 501..=619));
        progress.chunks().fetch_add(1, Ordering::Relaxed);
        assert!(!hangs(&mut progress, true, 620..=739), "something came");
        assert!(hangs(&mut progress, true, 740..=740));
        assert!(!hangs(&mut progress, false, 741..=741));
        assert!(!progress.hangs(true, seconds(741) + 10 * PATIENCE), "nobody looked for long");
        assert_eq!(progress.idle, GLANCE);
    }
}
