//! Memory between passes, by the job's UID. All of it is a cache: a new operator rebuilds it.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, MutexGuard};

use crate::cache::number;
use crate::children::ChildName;
use crate::pods::SeenPod;

const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
const LONGEST_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Time in which another message for a rejection does not count as a new rejection.
const SAME_REJECTION: SignedDuration = SignedDuration::from_secs(60);

/// Everything that is remembered.
#[derive(Default)]
pub struct Memory {
    pub status_writes: StatusWrites,
    pub failures: Failures,
    pub rejections: Rejections,
    pub applied: Applied,
    /// Stable pods of the last pass ([`crate::pods::stable`]).
    pub seen_pods: SeenPods,
    pub lacking_sets: LackingSets,
}

impl Memory {
    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        let Self { status_writes, failures, rejections, applied, seen_pods, lacking_sets } = self;
        status_writes.0.retain(&exists);
        failures.0.retain(&exists);
        rejections.0.retain(&exists);
        applied.0.retain(&exists);
        seen_pods.0.retain(&exists);
        lacking_sets.0.retain(&exists);
    }
}

struct ByJob<V>(Mutex<HashMap<String, V>>);

impl<V> Default for ByJob<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V> ByJob<V> {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, V>> {
        // Entries are replaced whole.
        self.0.lock()
    }

    fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| exists(uid));
    }
}

/// Version and time of the last status write.
#[derive(Default)]
pub struct StatusWrites(ByJob<(u64, Timestamp)>);

impl StatusWrites {
    pub fn record(&self, uid: &str, version: Option<&str>, now: Timestamp) {
        self.0.lock().insert(uid.to_owned(), (number(version), now));
    }

    /// Time of the last write.
    pub fn last(&self, uid: &str) -> Option<Timestamp> {
        self.0.lock().get(uid).map(|(_, time)| *time)
    }

    /// Whether the last write made a newer version: a pass over this one would use outdated state.
    pub fn is_newer(&self, uid: &str, version: Option<&str>) -> bool {
        self.0.lock().get(uid).is_some_and(|(written, _)| *written > number(version))
    }
}

/// Consecutive failed passes.
#[derive(Default)]
pub struct Failures(ByJob<u32>);

impl Failures {
    /// Counts a failure and returns the retry delay, which doubles from a second to a minute.
    pub fn next_delay(&self, uid: &str) -> Duration {
        let mut failures = self.0.lock();
        let count = failures.entry(uid.to_owned()).or_default();
        let delay = FIRST_RETRY_DELAY.saturating_mul(1 << (*count).min(6));
        *count = count.saturating_add(1);
        delay.min(LONGEST_RETRY_DELAY)
    }

    pub fn clear(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

/// The message and time of a child that the API server rejected in the last pass.
#[derive(Default)]
pub struct Rejections(ByJob<(String, Timestamp)>);

impl Rejections {
    pub fn get(&self, uid: &str) -> Option<String> {
        self.0.lock().get(uid).map(|(message, _)| message.clone())
    }

    /// Records the rejection of this pass, or none. Returns whether the status must change.
    ///
    /// Another message for an ongoing rejection counts once a minute: webhooks may put a request id
    /// into each message, and every status write causes a pass.
    pub fn replace(&self, uid: &str, rejection: Option<&str>, now: Timestamp) -> bool {
        let mut rejections = self.0.lock();
        let Some(message) = rejection else { return rejections.remove(uid).is_some() };
        let is_known = rejections.get(uid).is_some_and(|(known, since)| {
            known == message || now.duration_since(*since) < SAME_REJECTION
        });
        if !is_known {
            rejections.insert(uid.to_owned(), (message.to_owned(), now));
        }
        !is_known
    }
}

/// Results of this process's applies.
#[derive(Default)]
pub struct Applied(ByJob<HashMap<ChildName, AppliedChild>>);

/// The result of an apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedChild {
    /// Digest of the desired fields.
    pub desired: u64,
    /// Fingerprint of the resulting object.
    pub fingerprint: u64,
    /// UID and resourceVersion of a Secret, which the cache does not hold.
    pub identity: Option<(String, String)>,
}

impl Applied {
    pub fn get(&self, uid: &str, name: &ChildName) -> Option<AppliedChild> {
        self.0.lock().get(uid)?.get(name).cloned()
    }

    pub fn insert(&self, uid: &str, name: &ChildName, child: AppliedChild) {
        self.0.lock().entry(uid.to_owned()).or_default().insert(name.clone(), child);
    }

    pub fn remove(&self, uid: &str, name: &ChildName) {
        if let Some(children) = self.0.lock().get_mut(uid) {
            children.remove(name);
        }
    }
}

/// Pods of the last pass.
#[derive(Default)]
pub struct SeenPods(ByJob<Vec<SeenPod>>);

impl SeenPods {
    pub fn get(&self, uid: &str) -> Vec<SeenPod> {
        self.0.lock().get(uid).cloned().unwrap_or_default()
    }

    pub fn replace(&self, uid: &str, pods: Vec<SeenPod>) {
        self.0.lock().insert(uid.to_owned(), pods);
    }
}

/// The StatefulSet of each job that lacked pods in the last pass, by its UID, and since when.
#[derive(Default)]
pub struct LackingSets(ByJob<Option<(String, Option<Timestamp>)>>);

impl LackingSets {
    /// Records the set of this pass. Returns since when it lacks pods; unknown if it did in the
    /// first pass of this operator and `is_named`, which tells whether the status already names it.
    pub fn replace(
        &self,
        uid: &str,
        set: Option<&str>,
        is_named: bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut sets = self.0.lock();
        let since = match sets.get(uid) {
            Some(Some((known, since))) if Some(known.as_str()) == set => *since,
            None if is_named => None,
            _ => Some(now),
        };
        sets.insert(uid.to_owned(), set.map(|set| (set.to_owned(), since)));
        since.filter(|_| set.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lacks_pods_since_the_first_pass_in_which_it_did() {
        let sets = LackingSets::default();
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let other = sets.replace("b", Some("trainer"), false, at(1));
        assert_eq!(other, Some(at(1)), "the status does not know this wait");
        for (second, set, since) in [
            (1, Some("trainer"), None),
            (2, Some("trainer"), None),
            (3, None, None),
            (4, Some("trainer"), Some(4)),
            (9, Some("trainer"), Some(4)),
            (12, Some("inference"), Some(12)),
        ] {
            assert_eq!(sets.replace("a", set, true, at(second)), since.map(at), "{second}");
        }
    }

    #[test]
    fn objects_older_than_the_last_write_are_outdated() {
        let writes = StatusWrites::default();
        writes.record("a", Some("10"), Timestamp::UNIX_EPOCH);
        let newer = |uid, version| writes.is_newer(uid, Some(version));
        assert_eq!((writes.last("a"), writes.last("b")), (Some(Timestamp::UNIX_EPOCH), None));
        assert!(newer("a", "9") && !newer("a", "10") && !newer("a", "11") && !newer("b", "1"));
    }

    #[test]
    fn delays_double_up_to_a_minute_and_a_success_resets_them() {
        let failures = Failures::default();
        let delays: Vec<u64> = (0..9).map(|_| failures.next_delay("a").as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(failures.next_delay("b").as_secs(), 1, "jobs are independent");
        failures.clear("a");
        assert_eq!(failures.next_delay("a").as_secs(), 1);
    }

    #[test]
    fn a_rejection_is_new_once_and_with_another_message_once_a_minute() {
        let rejections = Rejections::default();
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        for (second, rejection, is_new, then) in [
            (0, None, false, None),
            (1, Some("rejected, request 1"), true, Some("rejected, request 1")),
            (2, Some("rejected, request 1"), false, Some("rejected, request 1")),
            (3, Some("rejected, request 2"), false, Some("rejected, request 1")),
            (61, Some("rejected, request 3"), true, Some("rejected, request 3")),
            (62, None, true, None),
        ] {
            assert_eq!(rejections.replace("a", rejection, at(second)), is_new, "second {second}");
            assert_eq!(rejections.get("a").as_deref(), then, "second {second}");
        }
        assert_eq!(rejections.get("b"), None);
    }

    #[test]
    fn deleted_jobs_are_forgotten() {
        let memory = Memory::default();
        memory.status_writes.record("a", None, Timestamp::UNIX_EPOCH);
        memory.rejections.replace("b", Some("rejected"), Timestamp::UNIX_EPOCH);
        memory.retain(|uid| uid == "b");
        assert_eq!(memory.status_writes.last("a"), None);
        assert_eq!(memory.rejections.get("b").as_deref(), Some("rejected"));
    }
}
