//! Which pods were there in the pass before: how a pod is noticed that vanished without a state
//! that says so. Only a hint for people; nothing is done because of it, and a new operator starts
//! without.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use super::PodFacts;
use crate::desired::Role;

/// A pod that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its role.
    pub role: Role,
    /// Its number in its StatefulSet.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The node it was on.
    pub node: Option<String>,
}

/// Pods that were wanted and were not on their way out, by the job's UID.
#[derive(Default)]
pub struct LastSeen(Mutex<HashMap<String, Vec<Gone>>>);

impl LastSeen {
    /// Those that are gone though their StatefulSets want pods in their places.
    pub fn gone(
        &self,
        job: &str,
        pods: &[PodFacts],
        wants: impl Fn(Role, u32) -> bool,
    ) -> Vec<Gone> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        let is_gone = |before: &&Gone| {
            !here.contains(before.uid.as_str()) && wants(before.role, before.ordinal)
        };
        seen.get(job).into_iter().flatten().filter(is_gone).cloned().collect()
    }

    /// Remembers the pods of this pass.
    pub fn replace(&self, job: &str, pods: &[PodFacts]) {
        let staying =
            pods.iter().filter(|pod| pod.wanted && pod.deletion.is_none() && pod.failed.is_none());
        let now = staying
            .map(|pod| Gone {
                role: pod.role,
                ordinal: pod.ordinal,
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                node: pod.node.clone(),
            })
            .collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(job.to_owned(), now);
    }

    /// Forgets jobs that are gone.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|job, _| exists(job));
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{asked_to_go, pod};
    use super::*;

    #[test]
    fn a_pod_has_vanished_when_it_is_wanted_and_gone_and_was_not_on_its_way_out() {
        let seen = LastSeen::default();
        let gone = |job: &str, pods: &[PodFacts]| {
            seen.gone(job, pods, |role, ordinal| (role, ordinal) == (Role::Trainer, 0))
        };
        let successor = [PodFacts { uid: "another".to_owned(), ..pod("sums-trainer-0") }];
        assert_eq!(gone("job", &successor), [], "nothing was seen before");
        seen.replace("job", &[pod("sums-trainer-0"), pod("sums-trainer-1")]);
        assert_eq!(gone("job", &[pod("sums-trainer-0")]), [], "the other is not wanted");
        let expected = [Gone {
            role: Role::Trainer,
            ordinal: 0,
            name: "sums-trainer-0".to_owned(),
            uid: "uid of sums-trainer-0".to_owned(),
            node: Some("node-2".to_owned()),
        }];
        assert_eq!(gone("job", &[]), expected);
        assert_eq!(gone("job", &successor), expected);
        assert_eq!(gone("another job", &successor), []);
        seen.replace("job", &[asked_to_go(pod("sums-trainer-0"), 0, 30)]);
        assert_eq!(gone("job", &successor), [], "it went as it was asked to");
    }
}
