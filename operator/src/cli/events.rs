//! `rljob events`: events of an RLJob, its StatefulSets and its pods, in the order of time.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::ListParams;
use rljob_crds::RLJob;
use serde::Serialize;

use super::connection::{Connection, ConnectionArgs};
use super::status::Output;
use super::tree::age;
use crate::desired::Role;
use crate::local::lines::one_line;

/// Events per request.
const PAGE: u32 = 500;

/// Print the events of an RLJob, its StatefulSets and its pods, in the order of time.
///
/// The API server keeps events for a limited time, an hour by default. Needs the permissions to get
/// `rljobs` and to list `events`.
#[derive(clap::Args, Debug)]
pub struct EventsArgs {
    /// Name of the RLJob.
    pub name: String,
    /// Format of the output.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// An event in the output for programs.
#[derive(Serialize)]
struct Row<'a> {
    time: Option<Timestamp>,
    #[serde(rename = "type")]
    type_: Option<&'a str>,
    reason: Option<&'a str>,
    kind: Option<&'a str>,
    name: Option<&'a str>,
    message: Option<&'a str>,
    count: i32,
}

/// Returns the events as a table, JSON or YAML.
///
/// # Errors
/// The job does not exist, or a request fails.
pub async fn events(arguments: &EventsArgs) -> anyhow::Result<String> {
    let connection = Connection::open(&arguments.connection).await?;
    let job = connection.job(&arguments.name).await?;
    let (api, mut events) = (connection.api::<Event>(), Vec::new());
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = api.list(&page).await;
        let list = list.map_err(|error| connection.failed("list events", error))?;
        events.extend(list.items.into_iter().filter(|event| is_about(event, &job)));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    if events.is_empty() {
        anyhow::bail!(
            "RLJob {} has no events: the API server may have deleted them after its --event-ttl",
            arguments.name
        );
    }
    events.sort_by_key(last_time);
    arguments.output.format(&rows(&events), || table(&events, Timestamp::now()))
}

/// Whether an event is about a job, or about a child since the job exists.
fn is_about(event: &Event, job: &RLJob) -> bool {
    let object = &event.involved_object;
    if object.kind.as_deref() == Some("RLJob") {
        return object.uid.is_some() && object.uid == job.metadata.uid;
    }
    let group = job.spec.frozen_group().map(|group| group.name.as_str());
    let created = job.creation_timestamp().map(|time| time.0);
    object.name.as_deref().is_some_and(|name| is_child(name, &job.name_any(), group))
        && last_time(event) >= created
}

/// Whether a name is that of a role's objects, or of one of its pods: `JOB-trainer`,
/// `JOB-trainer-0`, `JOB-trainer-GROUP-0`.
fn is_child(name: &str, job: &str, group: Option<&str>) -> bool {
    let Some(rest) = name.strip_prefix(job).and_then(|rest| rest.strip_prefix('-')) else {
        return false;
    };
    let is_ordinal =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_role = |text: &str| {
        let of_group =
            group.and_then(|group| text.strip_prefix("trainer-").map(|own| own == group));
        Role::parse(text).is_some() || of_group == Some(true)
    };
    let of_pod = rest.rsplit_once('-').filter(|(_, ordinal)| is_ordinal(ordinal));
    is_role(rest) || of_pod.is_some_and(|(role, _)| is_role(role))
}

fn last_time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    series
        .map(|time| time.0)
        .or_else(|| event.last_timestamp.as_ref().map(|time| time.0))
        .or_else(|| event.event_time.as_ref().map(|time| time.0))
        .or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

fn count(event: &Event) -> i32 {
    let series = event.series.as_ref().and_then(|series| series.count);
    series.or(event.count).unwrap_or(1)
}

fn rows<'a>(events: &'a [Event]) -> Vec<Row<'a>> {
    let row = |event: &'a Event| {
        let object = &event.involved_object;
        Row {
            time: last_time(event),
            type_: event.type_.as_deref(),
            reason: event.reason.as_deref(),
            kind: object.kind.as_deref(),
            name: object.name.as_deref(),
            message: event.message.as_deref(),
            count: count(event),
        }
    };
    events.iter().map(row).collect()
}

fn table(events: &[Event], now: Timestamp) -> String {
    let row = |event: &Event| {
        let object = &event.involved_object;
        let name = |text: &Option<String>| text.clone().unwrap_or_default();
        let number = count(event);
        let times = if number > 1 { format!(" (x{number})") } else { String::new() };
        [
            last_time(event).map_or_else(|| "-".to_owned(), |time| age(time, now)),
            name(&event.type_),
            name(&event.reason),
            format!("{}/{}", name(&object.kind).to_lowercase(), name(&object.name)),
            format!("{}{times}", one_line(event.message.as_deref().unwrap_or_default())),
        ]
    };
    super::table::table(
        ["AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"],
        &events.iter().map(row).collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_rows_of_a_table_and_objects_for_programs() {
        let event: Event = serde_json::from_value(serde_json::json!({
            "metadata": {}, "type": "Warning", "reason": "FailedScheduling",
            "message": "0/2 nodes are available:\n2 Insufficient nvidia.com/gpu", "count": 3,
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "involvedObject": {"kind": "Pod", "name": "a-trainer-0", "uid": "1"},
        }))
        .unwrap();
        let events = [event];
        assert_eq!(
            serde_json::to_value(rows(&events)).unwrap(),
            serde_json::json!([{
                "time": "2026-01-01T00:00:00Z", "type": "Warning", "reason": "FailedScheduling",
                "kind": "Pod", "name": "a-trainer-0", "count": 3,
                "message": "0/2 nodes are available:\n2 Insufficient nvidia.com/gpu",
            }])
        );
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let text = table(&events, now);
        let row = text.lines().nth(1).unwrap();
        assert!(row.contains("pod/a-trainer-0") && row.ends_with("gpu (x3)"), "{text}");
    }

    #[test]
    fn objects_of_other_jobs_are_not_children() {
        for name in ["a-trainer", "a-trainer-0", "a-inference-12", "a-coordinator-0"] {
            assert!(is_child(name, "a", None), "{name}");
        }
        for name in ["a-trainer-frozen", "a-trainer-frozen-0", "a-trainer-0"] {
            assert!(is_child(name, "a", Some("frozen")), "{name}");
        }
        for name in ["a", "ab-trainer-0", "a-trainer-b", "a-b-trainer-0", "a-trainer-", "b"] {
            assert!(!is_child(name, "a", Some("frozen")), "{name}");
        }
    }
}
