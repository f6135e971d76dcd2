//! Pods stuck in Terminating past their grace period, because their node and its kubelet are gone.
//! Their StatefulSets create no replacement before they are deleted.
//!
//! A forced deletion ends no process. One that still runs on a partitioned node is fenced by its
//! epoch or attempt.

use jiff::{SignedDuration, Timestamp};

use super::facts::PodFacts;

/// Time after the grace period: a working kubelet has killed the containers and needs seconds to
/// clean up mounts and GPUs.
const OVERDUE: SignedDuration = SignedDuration::from_secs(20);
/// Time after the request where no kubelet works: a node that recovers within it still ends the pod
/// in order.
const UNATTENDED: SignedDuration = SignedDuration::from_secs(5);

/// The time at which the pod is deleted by force.
pub(super) fn due(pod: &PodFacts) -> Option<Timestamp> {
    let deletion = pod.deletion?;
    let attended = pod.acknowledged && !pod.unresponsive;
    let orderly = deletion.deadline.saturating_add(OVERDUE).unwrap_or(Timestamp::MAX);
    let early = deletion.requested_at.saturating_add(UNATTENDED).unwrap_or(Timestamp::MAX);
    Some(if attended { orderly } else { early.min(orderly) })
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{pod, terminating};
    use super::*;
    use crate::decide::test_support::at;

    #[test]
    fn a_terminating_pod_is_lost_after_its_grace_period_or_early_without_a_kubelet() {
        let deleted = || terminating(pod("sums-trainer-0"), 0, 30);
        for (case, pod, expected) in [
            ("not terminating", pod("sums-trainer-0"), None),
            ("the kubelet has the grace period and 20 s", deleted(), Some(at(50))),
            ("node not ready", PodFacts { unresponsive: true, ..deleted() }, Some(at(5))),
            (
                "never accepted by a kubelet",
                PodFacts { acknowledged: false, ..deleted() },
                Some(at(5)),
            ),
            (
                "node not ready, not terminating",
                PodFacts { unresponsive: true, ..pod("sums-trainer-0") },
                None,
            ),
            ("short grace period", terminating(pod("sums-trainer-0"), 0, 1), Some(at(21))),
        ] {
            assert_eq!(due(&pod), expected, "{case}");
        }
    }
}
