//! Limits of log lines, by place in the code. Pure.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;
use tracing::callsite::Identifier;

/// Lines of one place that are written at once.
const BURST: u32 = 20;
/// Seconds per further line.
const SECONDS_PER_LINE: u64 = 3;

/// Limits of all places. Their number is that of the log statements in the program.
#[derive(Debug, Default)]
pub(crate) struct Limits(Mutex<HashMap<Identifier, Bucket>>);

/// Lines of one place that were left out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) place: String,
    pub(crate) count: u64,
}

/// Token bucket of one place.
#[derive(Debug)]
struct Bucket {
    place: String,
    tokens: u32,
    /// Time up to which tokens were added.
    filled: Instant,
    left_out: u64,
}

impl Limits {
    /// Whether a line of this place may be written at `now`.
    pub(crate) fn admits(&self, callsite: Identifier, place: String, now: Instant) -> bool {
        let mut buckets = self.0.lock();
        buckets.entry(callsite).or_insert_with(|| Bucket::new(place, now)).admits(now)
    }

    /// Lines that were left out since the last call.
    pub(crate) fn take_left_out(&self) -> Vec<LeftOut> {
        let mut buckets = self.0.lock();
        let limited = buckets.values_mut().filter(|bucket| bucket.left_out > 0);
        limited
            .map(|bucket| LeftOut {
                place: bucket.place.clone(),
                count: std::mem::take(&mut bucket.left_out),
            })
            .collect()
    }
}

impl Bucket {
    fn new(place: String, now: Instant) -> Self {
        Self { place, tokens: BURST, filled: now, left_out: 0 }
    }

    fn admits(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.filled);
        let new = u32::try_from(elapsed.as_secs() / SECONDS_PER_LINE).unwrap_or(u32::MAX);
        if new > 0 {
            self.tokens = self.tokens.saturating_add(new).min(BURST);
            self.filled = now;
        }
        let is_admitted = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        self.left_out = self.left_out.saturating_add(u64::from(!is_admitted));
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Lines of a retry every 250 ms that are admitted in a number of seconds.
    fn admitted(bucket: &mut Bucket, start: Instant, seconds: u32) -> usize {
        let times = (0..seconds * 4).map(|quarter| start + Duration::from_millis(250) * quarter);
        times.filter(|time| bucket.admits(*time)).count()
    }

    #[test]
    fn a_warning_that_is_repeated_for_ten_minutes_is_written_219_times_and_the_rest_is_counted() {
        let start = Instant::now();
        let mut bucket = Bucket::new("retry.rs:7".to_owned(), start);
        assert_eq!(admitted(&mut bucket, start, 600), 219);
        assert_eq!(bucket.left_out, 2400 - 219);
    }

    #[test]
    fn a_place_that_was_silent_for_a_minute_may_write_a_burst_again() {
        let start = Instant::now();
        let mut bucket = Bucket::new("retry.rs:7".to_owned(), start);
        assert_eq!(admitted(&mut bucket, start, 60), 39);
        let later = start + Duration::from_secs(120);
        assert_eq!((0..100).filter(|_| bucket.admits(later)).count(), 20);
    }
}
