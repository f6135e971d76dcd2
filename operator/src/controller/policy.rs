//! When a failed pass is tried again: at once after a conflict, later and later after other failures in a row.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// After a conflict: by then the watch has brought the newer object.
pub(super) const CONFLICT_DELAY: Duration = Duration::from_millis(200);
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Failures in a row, by the job's UID.
#[derive(Default)]
pub struct Failures(Mutex<HashMap<String, u32>>);

impl Failures {
    /// Counts a failure; gives the time to wait: doubling from a second to a minute.
    pub(super) fn next_delay(&self, uid: &str) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(uid.to_owned()).or_default();
        let delay = FIRST_DELAY.saturating_mul(1 << (*count).min(6)).min(LONGEST_DELAY);
        *count += 1;
        delay
    }

    /// Forgets jobs that are gone.
    pub(super) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| exists(uid));
    }

    /// A pass succeeded.
    pub(super) fn clear(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_minute_and_a_success_starts_over() {
        let failures = Failures::default();
        let delays: Vec<u64> = (0..9).map(|_| failures.next_delay("a").as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(failures.next_delay("b").as_secs(), 1, "each job by itself");
        failures.clear("a");
        assert_eq!(failures.next_delay("a").as_secs(), 1);
    }
}
