//! How soon a lost process is started again, and when to give up. Pure: time is a parameter.

use std::time::Duration;

/// Losses in a row after which a run fails: a process that never lives for [`STEADY`] will not live
/// the next time either.
pub const MAX_LOSSES: u32 = 6;

/// A process that lived so long has started well: its earlier losses are forgotten.
pub const STEADY: Duration = Duration::from_secs(30);

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(8);

/// Losses in a row of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Losses(u32);

impl Losses {
    /// Counts a loss after the process lived for `lived`. Returns how long to wait before it is
    /// started again; none if it was lost too often.
    pub fn count(&mut self, lived: Duration) -> Option<Duration> {
        self.0 = if lived >= STEADY { 1 } else { self.0 + 1 };
        let wait = FIRST.saturating_mul(1 << (self.0 - 1).min(16)).min(LONGEST);
        (self.0 < MAX_LOSSES).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_until_the_process_is_given_up() {
        let mut losses = Losses::default();
        let waits: Vec<Option<u128>> = (0..MAX_LOSSES)
            .map(|_| losses.count(Duration::from_secs(1)).map(|wait| wait.as_millis()))
            .collect();
        assert_eq!(waits, [Some(250), Some(500), Some(1000), Some(2000), Some(4000), None]);
    }

    #[test]
    fn a_process_that_lived_long_starts_afresh() {
        let mut losses = Losses::default();
        for _ in 0..4 {
            losses.count(Duration::ZERO);
        }
        assert_eq!(losses.count(STEADY), Some(FIRST));
    }
}
