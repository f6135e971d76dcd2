//! A pod that is to go and does not: its node is gone, and with it the kubelet that would end it.
//! Its StatefulSet makes no successor before it is removed.
//!
//! Removal by force ends no process: one that still runs on a node that is cut off is fenced by its
//! epoch or attempt.

use jiff::{SignedDuration, Timestamp};

use super::PodFacts;

/// A kubelet that lives has killed the containers when the grace period ends, and takes seconds to
/// clean up after them (mounts, GPUs).
const OVERDUE: SignedDuration = SignedDuration::from_secs(20);
/// Where no kubelet is seen to live, none ends the pod in its grace period; a node that is back
/// within this time still does it in order.
const UNATTENDED: SignedDuration = SignedDuration::from_secs(5);

/// When the pod is to be removed by force, if it is still there then.
pub(super) fn due(pod: &PodFacts) -> Option<Timestamp> {
    let deletion = pod.deletion?;
    let attended = pod.acknowledged && !pod.silent;
    let orderly = deletion.due.saturating_add(OVERDUE).unwrap_or(Timestamp::MAX);
    let early = deletion.asked.saturating_add(UNATTENDED).unwrap_or(Timestamp::MAX);
    Some(if attended { orderly } else { early.min(orderly) })
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{asked_to_go, pod};
    use super::*;
    use crate::decide::test_support::at;

    #[test]
    fn a_pod_is_lost_some_time_after_its_grace_period_or_soon_where_no_kubelet_lives() {
        let going = || asked_to_go(pod("sums-trainer-0"), 0, 30);
        for (case, pod, expected) in [
            ("nobody asked it to go", pod("sums-trainer-0"), None),
            ("its kubelet has the grace period and some time more", going(), Some(at(50))),
            ("its node does not answer", PodFacts { silent: true, ..going() }, Some(at(5))),
            (
                "no kubelet ever took it on",
                PodFacts { acknowledged: false, ..going() },
                Some(at(5)),
            ),
            (
                "its node does not answer, but was not asked",
                PodFacts { silent: true, ..pod("sums-trainer-0") },
                None,
            ),
            ("a short grace period", asked_to_go(pod("sums-trainer-0"), 0, 1), Some(at(21))),
        ] {
            assert_eq!(due(&pod), expected, "{case}");
        }
    }
}
