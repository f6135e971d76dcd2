//! Restart backoff of processes. Pure: time is a parameter.

use std::time::Duration;

/// Consecutive exits after which a run fails.
pub const MAX_EXITS: u32 = 6;

/// Uptime that resets the count of consecutive exits.
pub const STEADY: Duration = Duration::from_secs(30);

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(8);

/// Consecutive exits of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Exits(u32);

impl Exits {
    /// Counts an exit after `uptime`. Returns the delay of the restart, or `None` after
    /// [`MAX_EXITS`] consecutive exits.
    pub fn count(&mut self, uptime: Duration) -> Option<Duration> {
        self.0 = if uptime >= STEADY { 1 } else { self.0.saturating_add(1) };
        let delay = FIRST.saturating_mul(1 << self.0.saturating_sub(1).min(16)).min(LONGEST);
        (self.0 < MAX_EXITS).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_until_the_limit_of_exits() {
        let mut exits = Exits::default();
        let delays: Vec<Option<u128>> = (0..MAX_EXITS)
            .map(|_| exits.count(Duration::from_secs(1)).map(|delay| delay.as_millis()))
            .collect();
        assert_eq!(delays, [Some(250), Some(500), Some(1000), Some(2000), Some(4000), None]);
    }

    #[test]
    fn a_long_uptime_resets_the_delay() {
        let mut exits = Exits::default();
        for _ in 0..4 {
            exits.count(Duration::ZERO);
        }
        assert_eq!(exits.count(STEADY), Some(FIRST));
    }
}
