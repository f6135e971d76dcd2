//! Events for a change of the run's state, a new failure and a new incident. Published after the
//! write of the status that they describe.

use rljob_crds::names::{
    CONDITION_STALLED, CONDITION_SUCCEEDED, REASON_COORDINATOR_UNRESPONSIVE, REASON_NO_PROGRESS,
    REASON_REWARD_UNAVAILABLE, REASON_STORAGE_UNAVAILABLE,
};
use rljob_crds::status::{Incident, RLJobStatus};

/// Reasons of runs that wait for the end of a failure, without which they do not train.
const WAITS: [&str; 4] = [
    REASON_COORDINATOR_UNRESPONSIVE,
    REASON_NO_PROGRESS,
    REASON_REWARD_UNAVAILABLE,
    REASON_STORAGE_UNAVAILABLE,
];

/// An event to publish about the RLJob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusEvent {
    pub warning: bool,
    /// CamelCase reason.
    pub reason: String,
    /// One line.
    pub note: String,
    /// Name of the pod that it is about.
    pub pod: Option<String>,
    pub pod_uid: Option<String>,
}

/// Events for the change from one status to the next.
pub fn events(old: &RLJobStatus, new: &RLJobStatus) -> Vec<StatusEvent> {
    let mut events = Vec::new();
    if let Some(failure) =
        new.last_failure.as_ref().filter(|failure| old.last_failure.as_ref() != Some(failure))
    {
        let (reason, note, pod) =
            (failure.reason.clone(), failure.message.clone(), failure.pod.clone());
        events.push(StatusEvent { warning: true, reason, note, pod, pod_uid: None });
    }
    events.extend(new_incidents(old, new).cloned().map(
        |Incident { reason, message: note, pod, uid, .. }| {
            let (pod, pod_uid) = (Some(pod), Some(uid));
            StatusEvent { warning: true, reason, note, pod, pod_uid }
        },
    ));
    let summary = |status: &RLJobStatus| {
        status.conditions.iter().find(|condition| condition.type_ == CONDITION_SUCCEEDED).cloned()
    };
    let reason = summary(old).map(|condition| condition.reason);
    if let Some(state) = summary(new).filter(|state| Some(&state.reason) != reason.as_ref()) {
        let stalled = new
            .conditions
            .iter()
            .any(|condition| condition.type_ == CONDITION_STALLED && condition.status == "True");
        events.push(StatusEvent {
            warning: stalled || WAITS.contains(&state.reason.as_str()),
            reason: state.reason,
            note: state.message,
            ..StatusEvent::default()
        });
    }
    events
}

/// Incidents of the new status that the old one lacks, or has with another reason.
pub fn new_incidents<'a>(
    old: &'a RLJobStatus,
    new: &'a RLJobStatus,
) -> impl Iterator<Item = &'a Incident> {
    let known = |incident: &&Incident| {
        old.incidents
            .iter()
            .any(|entry| entry.uid == incident.uid && entry.reason == incident.reason)
    };
    new.incidents.iter().filter(move |incident| !known(incident))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::at;
    use crate::status::stalled;

    #[test]
    fn a_change_of_state_is_published_once() {
        let old = RLJobStatus::default();
        let new = stalled(1, &old, "InvalidSpec", "spec.rewards: is missing", at(0));
        let (reason, note) = ("InvalidSpec".to_owned(), "spec.rewards: is missing".to_owned());
        assert_eq!(
            events(&old, &new),
            [StatusEvent { warning: true, reason, note, ..StatusEvent::default() }]
        );
        assert_eq!(events(&new, &new), []);
    }

    #[test]
    fn an_incident_is_published_once_per_reason() {
        let status = |reason: &str| {
            let (message, pod, uid) =
                (format!("because {reason}"), "sums-trainer-0".to_owned(), "u".to_owned());
            let incident =
                Incident { reason: reason.to_owned(), message, pod, uid, ..Incident::default() };
            RLJobStatus { incidents: vec![incident], ..RLJobStatus::default() }
        };
        let event = |reason: &str| {
            let (pod, pod_uid) = (Some("sums-trainer-0".to_owned()), Some("u".to_owned()));
            StatusEvent {
                warning: true,
                reason: reason.to_owned(),
                note: format!("because {reason}"),
                pod,
                pod_uid,
            }
        };
        assert_eq!(
            events(&RLJobStatus::default(), &status("NodeNotReady")),
            [event("NodeNotReady")]
        );
        assert_eq!(events(&status("NodeNotReady"), &status("NodeNotReady")), []);
        assert_eq!(events(&status("NodeNotReady"), &status("PodLost")), [event("PodLost")]);
    }
}
