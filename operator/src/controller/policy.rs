//! What is remembered from one pass to the next: which version of the job the last one wrote and
//! when, how often one failed in a row, so that it is tried later and later, and what the API
//! server refused, so that the next pass records it. All are only hints; a new operator finds them
//! again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::cache::number;

/// After a conflict: by then the watch has brought the newer object.
pub(super) const CONFLICT_DELAY: Duration = Duration::from_millis(200);
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// For so long, a refusal in other words is the same one.
const SAME_REFUSAL: SignedDuration = SignedDuration::from_secs(60);

/// Versions of the RLJobs whose status this process wrote, and when, by UID.
#[derive(Default)]
pub struct Written(Mutex<HashMap<String, (u64, Timestamp)>>);

impl Written {
    /// Remembers the version that a write of the status made.
    pub(super) fn note(&self, uid: &str, version: Option<&str>, now: Timestamp) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(uid.to_owned(), (number(version), now));
    }

    /// When the status was written last.
    pub(super) fn at(&self, uid: &str) -> Option<Timestamp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uid).map(|(_, time)| *time)
    }

    /// Whether an object is older than the last write: a pass over it would decide on what is past.
    pub(super) fn is_newer(&self, uid: &str, version: Option<&str>) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(uid)
            .is_some_and(|(written, _)| *written > number(version))
    }

    /// Forgets jobs that are gone.
    pub(super) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| exists(uid));
    }
}

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

/// Children that the API server refused, by the job's UID, in its words and since when.
#[derive(Default)]
pub struct Rejections(Mutex<HashMap<String, (String, Timestamp)>>);

impl Rejections {
    /// What was refused in the last pass.
    pub(super) fn of(&self, uid: &str) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(uid)
            .map(|(message, _)| message.clone())
    }

    /// Remembers what was refused in this pass, or that nothing was. Says whether that is news,
    /// which the next pass has to record.
    ///
    /// Other words for a refusal that goes on are news once a minute: those of a webhook may differ
    /// each time, and every write of the status causes a pass.
    pub(super) fn replace(&self, uid: &str, rejection: Option<&str>, now: Timestamp) -> bool {
        let mut rejections = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(message) = rejection else { return rejections.remove(uid).is_some() };
        let settled = rejections.get(uid).is_some_and(|(before, since)| {
            before == message || now.duration_since(*since) < SAME_REFUSAL
        });
        if !settled {
            rejections.insert(uid.to_owned(), (message.to_owned(), now));
        }
        !settled
    }

    /// Forgets jobs that are gone.
    pub(super) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| exists(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_as_it_was_before_the_last_write_is_known_for_old() {
        let written = Written::default();
        written.note("a", Some("10"), Timestamp::UNIX_EPOCH);
        let newer = |uid, version| written.is_newer(uid, Some(version));
        assert_eq!((written.at("a"), written.at("b")), (Some(Timestamp::UNIX_EPOCH), None));
        assert!(newer("a", "9") && !newer("a", "10") && !newer("a", "11") && !newer("b", "1"));
    }

    #[test]
    fn delays_double_up_to_a_minute_and_a_success_starts_over() {
        let failures = Failures::default();
        let delays: Vec<u64> = (0..9).map(|_| failures.next_delay("a").as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(failures.next_delay("b").as_secs(), 1, "each job by itself");
        failures.clear("a");
        assert_eq!(failures.next_delay("a").as_secs(), 1);
    }

    #[test]
    fn a_rejection_is_news_once_and_in_other_words_once_a_minute() {
        let rejections = Rejections::default();
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        for (second, rejection, news, then) in [
            (0, None, false, None),
            (1, Some("refused, request 1"), true, Some("refused, request 1")),
            (2, Some("refused, request 1"), false, Some("refused, request 1")),
            (3, Some("refused, request 2"), false, Some("refused, request 1")),
            (61, Some("refused, request 3"), true, Some("refused, request 3")),
            (62, None, true, None),
        ] {
            assert_eq!(rejections.replace("a", rejection, at(second)), news, "second {second}");
            assert_eq!(rejections.of("a").as_deref(), then, "second {second}");
        }
        assert_eq!(rejections.of("b"), None);
    }
}
