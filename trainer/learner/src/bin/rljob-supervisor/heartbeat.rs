//! A learner's signs of life: bytes on its standard output, one a second, from a thread of its own.
//! Bytes that mean nothing still show that it lives.

use std::sync::{Mutex, PoisonError};

use rljob_protocol::supervisor::{PROGRESS, Pulse};
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::time::Instant;

/// When a learner was last heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    beat: Option<Instant>,
    progress: Instant,
}

impl Heard {
    /// Nothing yet, of a learner started at `now`.
    pub fn nothing(now: Instant) -> Self {
        Self { beat: None, progress: now }
    }

    /// Takes what it wrote.
    fn hear(&mut self, bytes: &[u8], now: Instant) {
        self.beat = Some(now);
        if bytes.contains(&PROGRESS) {
            self.progress = now;
        }
    }

    /// How long ago that was.
    pub fn pulse(&self, now: Instant) -> Pulse {
        let seconds = |since: Instant| {
            u32::try_from(now.saturating_duration_since(since).as_secs()).unwrap_or(u32::MAX)
        };
        Pulse { beat_seconds: self.beat.map(seconds), progress_seconds: seconds(self.progress) }
    }
}

/// Listens until the learner closes its standard output.
pub async fn listen(stdout: Option<ChildStdout>, heard: &Mutex<Heard>) {
    let Some(mut stdout) = stdout else { return };
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stdout.read(&mut buffer).await {
        heard.lock().unwrap_or_else(PoisonError::into_inner).hear(&buffer[..read], Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Heard, Pulse};
    use tokio::time::Instant;

    #[test]
    fn beats_and_progress_are_told_apart_and_both_age() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut heard = Heard::nothing(start);
        assert_eq!(heard.pulse(at(7)), Pulse { beat_seconds: None, progress_seconds: 7 });
        heard.hear(b"+", at(8));
        heard.hear(b"..", at(10));
        assert_eq!(heard.pulse(at(11)), Pulse { beat_seconds: Some(1), progress_seconds: 3 });
    }
}
