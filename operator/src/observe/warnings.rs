//! Warning events of objects that wait: some causes are reported nowhere else, for example that a
//! StatefulSet may not create its pod, or that a Secret to mount does not exist.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use rljob_crds::status::RLJobStatus;

use super::objects::Unexplained;
use crate::decide::Waiting;
use crate::pods::{self, Cause};

/// Time for which pods may be missing or without volumes before events are read.
const PATIENCE: SignedDuration = SignedDuration::from_secs(5);
/// Time between two reads of an object's events.
const INTERVAL: SignedDuration = SignedDuration::from_secs(10);
/// Time by which the event may precede the observation of its cause: events have seconds.
const EARLIER: SignedDuration = SignedDuration::from_secs(2);
/// Most events that are read of an object.
const LIMIT: u32 = 50;
/// Reasons that explain why a pod does not start.
const REASONS: [&str; 4] =
    ["FailedCreate", "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"];
/// Start of the warning with which the kubelet ends each two minutes of waiting for volumes. It
/// names all volumes; the cause has another warning.
const SUMMARY: &str = "Unable to attach or mount volumes";
/// Time for which a cause precedes newer summaries: the kubelet retries a mount, and repeats its
/// warning, within 2 min 2 s.
const CAUSE_INTERVAL: SignedDuration = SignedDuration::from_secs(150);

/// The time at which the events of an object are read: after [`PATIENCE`], then once per
/// [`INTERVAL`].
pub(super) fn recheck(object: &Unexplained, old: &RLJobStatus, now: Timestamp) -> Timestamp {
    let due = due(object, old).unwrap_or(now);
    let next = now.saturating_add(INTERVAL).unwrap_or(Timestamp::MAX);
    if due > now { due } else { next }
}

/// The end of the object's [`PATIENCE`]. Events before the start of the active period are outdated.
fn due(object: &Unexplained, old: &RLJobStatus) -> Option<Timestamp> {
    let since = object.since.or_else(|| old.active_since.as_ref().map(|time| time.0))?;
    since.saturating_add(PATIENCE).ok()
}

/// Whether the status has a cause from an event about this object: its wait began before.
pub(super) fn is_named(name: &str, old: &RLJobStatus) -> bool {
    let cause = |reason: &&str| format!("{name}: {reason}: ");
    let mut causes = REASONS.iter().map(cause);
    causes.any(|cause| old.conditions.iter().any(|condition| condition.message.contains(&cause)))
}

/// The time before which events are outdated: those about an earlier wait, or before the active
/// period.
fn first_relevant(object: &Unexplained, old: &RLJobStatus) -> Option<Timestamp> {
    let active = old.active_since.as_ref()?.0;
    let wait = object.since.and_then(|since| since.checked_sub(EARLIER).ok());
    Some(wait.map_or(active, |wait| wait.max(active)))
}

/// The cause in the newest warning event about the object. A failed request is logged: the pass
/// continues without the cause.
pub(super) async fn warning(
    client: &Client,
    namespace: &str,
    object: &Unexplained,
    old: &RLJobStatus,
    now: Timestamp,
) -> Option<Waiting> {
    let since = first_relevant(object, old)?;
    due(object, old).filter(|due| *due <= now)?;
    match newest(client, namespace, &object.uid, since).await {
        Ok(cause) => cause.map(|cause| pods::warned(object.name.clone(), &cause)),
        Err(error) => {
            tracing::warn!(object = object.name, %error, "failed to read warning events");
            None
        }
    }
}

/// The newest warning about an object since `since`.
///
/// # Errors
/// The request fails.
async fn newest(
    client: &Client,
    namespace: &str,
    uid: &str,
    since: Timestamp,
) -> kube::Result<Option<Cause>> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let selector = format!("regarding.uid={uid},type=Warning");
    let list = events.list(&ListParams::default().fields(&selector).limit(LIMIT)).await?;
    Ok(newest_cause(&list.items, since))
}

fn newest_cause(events: &[Event], since: Timestamp) -> Option<Cause> {
    let relevant = |event: &&Event| {
        event.reason.as_deref().is_some_and(|reason| REASONS.contains(&reason))
            && last_time(event).is_some_and(|time| time >= since)
    };
    let newest = events.iter().filter(relevant).max_by_key(|event| last_time(event))?;
    let is_recent = |event: &&Event| {
        let end = last_time(event).and_then(|time| time.checked_add(CAUSE_INTERVAL).ok());
        end >= last_time(newest)
    };
    let causes = events.iter().filter(relevant).filter(|event| !is_summary(event));
    let event = causes.filter(is_recent).max_by_key(|event| last_time(event)).unwrap_or(newest);
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let message = text(&event.note).lines().collect::<Vec<_>>().join(" ");
    Some(Cause { reason: text(&event.reason), message })
}

fn is_summary(event: &Event) -> bool {
    event.note.as_deref().is_some_and(|note| note.starts_with(SUMMARY))
}

/// Time of the last occurrence. Controllers that use the older API set the deprecated field only.
fn last_time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().map(|series| series.last_observed_time.0);
    let last = event.deprecated_last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    series.or(last).or(first)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    use super::*;
    use crate::decide::test_support::at;

    #[test]
    fn a_cause_in_the_status_names_its_object() {
        let condition: Condition = serde_json::from_value(serde_json::json!({
            "type": "Ready", "status": "False", "reason": "PodsCannotStart",
            "message": "sums-trainer: FailedCreate: exceeded quota",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap();
        let old = RLJobStatus { conditions: vec![condition], ..RLJobStatus::default() };
        assert!(is_named("sums-trainer", &old));
        assert!(!is_named("sums-inference", &old));
        assert!(!is_named("sums-trainer", &RLJobStatus::default()));
    }

    fn mount_warning(seconds: i64, note: &str) -> Event {
        serde_json::from_value(serde_json::json!({
            "metadata": {}, "reason": "FailedMount", "note": note,
            "deprecatedLastTimestamp": at(seconds).to_string(),
        }))
        .unwrap()
    }

    #[test]
    fn a_cause_precedes_newer_summaries_until_the_kubelet_no_longer_repeats_it() {
        let summary = "Unable to attach or mount volumes: unmounted volumes=[more]: timed out";
        let newest = |events: &[(i64, &str)]| {
            let events: Vec<_> = events.iter().map(|(at, note)| mount_warning(*at, note)).collect();
            newest_cause(&events, at(10)).map(|cause| cause.message)
        };
        let expect = |note: &str| Some(note.to_owned());
        assert_eq!(
            newest(&[(100, "driver not found"), (120, summary)]),
            expect("driver not found")
        );
        assert_eq!(newest(&[(100, "first"), (110, "second"), (260, summary)]), expect("second"));
        assert_eq!(newest(&[(100, "driver not found"), (251, summary)]), expect(summary));
        assert_eq!(newest(&[(5, "outdated"), (120, summary)]), expect(summary));
        assert_eq!(newest(&[(5, "outdated")]), None);
    }

    #[test]
    fn events_about_an_earlier_wait_are_outdated() {
        let old = RLJobStatus { active_since: Some(Time(at(100))), ..RLJobStatus::default() };
        let object = |since: Option<i64>| Unexplained {
            name: "sums-trainer".to_owned(),
            uid: "set".to_owned(),
            since: since.map(at),
        };
        for (since, expected) in [(None, 100), (Some(40), 100), (Some(500), 498)] {
            assert_eq!(first_relevant(&object(since), &old), Some(at(expected)), "{since:?}");
        }
        let of_wait = |since| first_relevant(&object(since), &RLJobStatus::default());
        assert_eq!(of_wait(Some(500)), None, "no active period");
    }
}
