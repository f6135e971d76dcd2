//! Heartbeats of a learner: one byte a second on its standard output. An unknown byte counts as a
//! heartbeat without progress.

use parking_lot::Mutex;
use rljob_protocol::supervisor::{HeartbeatAge, PROGRESS};
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::time::Instant;

/// Times of a learner's last heartbeat and last progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeats {
    beat: Option<Instant>,
    progress: Instant,
}

impl Heartbeats {
    /// State of a learner that was started at `now` and has sent no heartbeat.
    pub fn none(now: Instant) -> Self {
        Self { beat: None, progress: now }
    }

    /// Records bytes that the learner wrote.
    fn record(&mut self, bytes: &[u8], now: Instant) {
        self.beat = Some(now);
        if bytes.contains(&PROGRESS) {
            self.progress = now;
        }
    }

    /// Ages of the last heartbeat and the last progress.
    pub fn ages(&self, now: Instant) -> HeartbeatAge {
        let seconds = |since: Instant| {
            u32::try_from(now.saturating_duration_since(since).as_secs()).unwrap_or(u32::MAX)
        };
        HeartbeatAge {
            beat_seconds: self.beat.map(seconds),
            progress_seconds: seconds(self.progress),
        }
    }
}

/// Records heartbeats until the learner closes its standard output.
pub async fn listen(stdout: Option<ChildStdout>, heartbeats: &Mutex<Heartbeats>) {
    let Some(mut stdout) = stdout else { return };
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stdout.read(&mut buffer).await {
        let mut heartbeats = heartbeats.lock();
        heartbeats.record(buffer.get(..read).unwrap_or_default(), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{HeartbeatAge, Heartbeats};
    use tokio::time::Instant;

    #[test]
    fn heartbeats_with_and_without_progress_are_distinguished() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut heartbeats = Heartbeats::none(start);
        assert_eq!(
            heartbeats.ages(at(7)),
            HeartbeatAge { beat_seconds: None, progress_seconds: 7 }
        );
        heartbeats.record(b"+", at(8));
        heartbeats.record(b"..", at(10));
        assert_eq!(
            heartbeats.ages(at(11)),
            HeartbeatAge { beat_seconds: Some(1), progress_seconds: 3 }
        );
    }
}
