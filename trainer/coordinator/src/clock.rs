//! Monotonic clock of the process: the only clock that the coordinator reads.

use std::time::{Duration, Instant};

/// A clock that starts at 0.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
