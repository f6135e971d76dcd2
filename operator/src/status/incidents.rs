//! The log of incidents: keeps the ongoing ones, adds new ones, drops the oldest.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::names::{INCIDENT_DELETED, INCIDENT_POD_LOST, INCIDENT_VANISHED};
use rljob_crds::status::Incident;

use super::text::clip;

/// Limit of the log.
const LIMIT: usize = 16;

/// The log after a pass with these incidents.
pub(super) fn merge(old: &[Incident], seen: &[Incident], now: Timestamp) -> Vec<Incident> {
    // If more are ongoing than the log holds, always the same ones are logged, so that the status
    // stops changing.
    let seen = seen.get(..LIMIT).unwrap_or(seen);
    let mut log = old.to_vec();
    for incident in seen {
        let new = Incident {
            time: Some(Time(now)),
            message: clip(&incident.message),
            ..incident.clone()
        };
        match log.iter_mut().find(|entry| entry.uid == incident.uid) {
            None => log.push(new),
            // A pod that was deleted by force is still observed for a moment in its old state.
            Some(entry)
                if entry.reason != new.reason
                    && entry.reason != INCIDENT_POD_LOST
                    && has_cause(&new) =>
            {
                *entry = new;
            }
            Some(_) => {}
        }
    }
    while log.len() > LIMIT {
        let is_ongoing = |entry: &Incident| seen.iter().any(|incident| incident.uid == entry.uid);
        let oldest = log.iter().position(|entry| !is_ongoing(entry)).unwrap_or(0);
        log.remove(oldest);
    }
    log
}

/// A deletion or disappearance alone adds no information to an entry.
fn has_cause(incident: &Incident) -> bool {
    incident.reason != INCIDENT_DELETED && incident.reason != INCIDENT_VANISHED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::at;

    fn incident(uid: &str, reason: &str) -> Incident {
        Incident {
            uid: uid.to_owned(),
            reason: reason.to_owned(),
            pod: format!("pod {uid}"),
            message: format!("{uid} {reason}"),
            ..Incident::default()
        }
    }

    fn timed(uid: &str, reason: &str, second: i64) -> Incident {
        Incident { time: Some(Time(at(second))), ..incident(uid, reason) }
    }

    #[test]
    fn an_incident_is_logged_once_and_again_with_a_new_cause() {
        let first = merge(&[], &[incident("a", "NodeNotReady")], at(0));
        assert_eq!(first, [timed("a", "NodeNotReady", 0)]);
        assert_eq!(merge(&first, &[incident("a", "NodeNotReady")], at(5)), first);
        assert_eq!(
            merge(&first, &[incident("a", "Deleted")], at(5)),
            first,
            "the log has the cause"
        );
        let then = merge(&first, &[incident("a", "PodLost"), incident("b", "Vanished")], at(9));
        assert_eq!(then, [timed("a", "PodLost", 9), timed("b", "Vanished", 9)]);
        assert_eq!(merge(&then, &[], at(10)), then, "past incidents stay in the log");
        assert_eq!(
            merge(&then, &[incident("a", "NodeNotReady")], at(10)),
            then,
            "a deletion by force is final"
        );
    }

    #[test]
    fn the_log_drops_its_oldest_entries_and_stops_changing_with_many_incidents() {
        let many: Vec<Incident> =
            (0..40).map(|number| incident(&number.to_string(), "Evicted")).collect();
        let old = [timed("x", "Evicted", 0), timed("0", "Evicted", 0)];
        let log = merge(&old, &many, at(1));
        let uids: Vec<String> = log.iter().map(|incident| incident.uid.clone()).collect();
        assert_eq!(uids, (0..16).map(|number| number.to_string()).collect::<Vec<_>>());
        assert_eq!(merge(&log, &many, at(2)), log);
    }
}
