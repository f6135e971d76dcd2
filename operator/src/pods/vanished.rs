//! Pods that disappeared between two passes without a state that says why. Only the status reports
//! them; no decision depends on them.

use std::collections::BTreeSet;

use super::facts::PodFacts;
use crate::desired::Role;

/// A pod of an earlier pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenPod {
    pub role: Role,
    pub ordinal: u32,
    pub name: String,
    pub uid: String,
    pub node: Option<String>,
}

/// The pods that are wanted, and neither terminating nor failed: the next pass must find them.
pub fn stable(pods: &[PodFacts]) -> Vec<SeenPod> {
    pods.iter()
        .filter(|pod| pod.wanted && pod.deletion.is_none() && pod.failed.is_none())
        .map(|pod| SeenPod {
            role: pod.role,
            ordinal: pod.ordinal,
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            node: pod.node.clone(),
        })
        .collect()
}

/// The pods of the pass before that are gone although their StatefulSets want their ordinals.
pub fn vanished(
    before: &[SeenPod],
    pods: &[PodFacts],
    is_wanted: impl Fn(Role, u32) -> bool,
) -> Vec<SeenPod> {
    let existing: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    before
        .iter()
        .filter(|pod| !existing.contains(pod.uid.as_str()) && is_wanted(pod.role, pod.ordinal))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{pod, terminating};
    use super::*;

    #[test]
    fn a_wanted_pod_that_is_gone_and_was_not_terminating_has_vanished() {
        let gone = |before: &[PodFacts], pods: &[PodFacts]| {
            let is_wanted = |role, ordinal| (role, ordinal) == (Role::Trainer, 0);
            vanished(&stable(before), pods, is_wanted)
        };
        let successor = [PodFacts { uid: "another".to_owned(), ..pod("sums-trainer-0") }];
        assert_eq!(gone(&[], &successor), [], "no earlier pass");
        let before = [pod("sums-trainer-0"), pod("sums-trainer-1")];
        assert_eq!(gone(&before, &[pod("sums-trainer-0")]), [], "the other is not wanted");
        let expected = [SeenPod {
            role: Role::Trainer,
            ordinal: 0,
            name: "sums-trainer-0".to_owned(),
            uid: "uid of sums-trainer-0".to_owned(),
            node: Some("node-2".to_owned()),
        }];
        assert_eq!(gone(&before, &[]), expected);
        assert_eq!(gone(&before, &successor), expected);
        let deleted = [terminating(pod("sums-trainer-0"), 0, 30)];
        assert_eq!(gone(&deleted, &successor), [], "its deletion was seen");
    }
}
