//! Watch forwarding: events can be held back and are then delivered merged, one event for each
//! object, as after a disconnected watch.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::{Stream, StreamExt, stream};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

/// Source of reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reads {
    /// resourceVersion of stale reads; `None` for current reads.
    pub(super) past: Option<String>,
    pub(super) hold_watches: bool,
}

/// Capacity of the queue of events to the client.
const QUEUE: usize = 64;
/// Idle timeout of a stream; longer than the operator's watch timeout.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Response body of a watch: forwards events, or holds them back while `hold_watches` is set.
pub(super) fn relay(upstream: reqwest::Response, reads: watch::Receiver<Reads>) -> Body {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(pass_on(upstream.bytes_stream().boxed(), reads, sender));
    let events = stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|event| (Ok::<_, io::Error>(event), receiver))
    });
    Body::from_stream(events)
}

async fn pass_on(
    mut upstream: impl Stream<Item = reqwest::Result<Bytes>> + Unpin,
    mut reads: watch::Receiver<Reads>,
    client: mpsc::Sender<Bytes>,
) {
    let (mut unfinished, mut events, mut holds) = (Vec::new(), Vec::new(), false);
    loop {
        tokio::select! {
            () = client.closed() => return,
            changed = reads.changed() => if changed.is_err() { return },
            chunk = tokio::time::timeout(IDLE_TIMEOUT, upstream.next()) => {
                let Ok(Some(Ok(chunk))) = chunk else { return };
                unfinished.extend_from_slice(&chunk);
                events.extend(whole_lines(&mut unfinished));
            }
        }
        if reads.borrow().hold_watches {
            holds = true;
            continue;
        }
        let passed = std::mem::take(&mut events);
        let passed = if std::mem::take(&mut holds) { merge(passed) } else { passed };
        for event in passed {
            if client.send(Bytes::from(format!("{event}\n"))).await.is_err() {
                return;
            }
        }
    }
}

/// Removes and parses the complete lines of a buffer.
fn whole_lines(buffer: &mut Vec<u8>) -> Vec<Value> {
    let Some(end) = buffer.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
    let rest = buffer.split_off(end + 1);
    let lines = std::mem::replace(buffer, rest);
    lines
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}

/// Keeps the last event of each object; objects that were created and deleted meanwhile are
/// omitted.
fn merge(events: Vec<Value>) -> Vec<Value> {
    let key = |event: &Value| {
        event
            .pointer("/object/metadata")
            .map(|metadata| (metadata["namespace"].to_string(), metadata["name"].to_string()))
    };
    // The newest event, and whether the object is new to the client.
    let mut merged: Vec<(Value, bool)> = Vec::new();
    for event in events {
        if event["type"] == "BOOKMARK" {
            continue;
        }
        let is_new = event["type"] == "ADDED";
        let known = merged.iter().position(|(earlier, _)| key(earlier) == key(&event));
        let was_new = known.map_or(is_new, |index| merged.remove(index).1);
        merged.push((event, was_new));
    }
    let seen = merged.into_iter().filter_map(|(mut event, was_new)| {
        match (event["type"].as_str(), was_new) {
            (Some("DELETED"), true) => None,
            (Some("ADDED"), false) => {
                event["type"] = "MODIFIED".into();
                Some(event)
            }
            (Some("MODIFIED"), true) => {
                event["type"] = "ADDED".into();
                Some(event)
            }
            _ => Some(event),
        }
    });
    seen.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{merge, whole_lines};

    #[test]
    fn merging_keeps_the_last_event_of_each_object() {
        let event = |kind: &str, name: &str, version: u32| {
            json!({
                "type": kind, "object": {"metadata": {"name": name, "version": version}},
            })
        };
        let seen = merge(vec![
            event("MODIFIED", "old", 1),
            event("ADDED", "new", 2),
            event("ADDED", "short", 3),
            event("MODIFIED", "new", 4),
            event("DELETED", "replaced", 5),
            event("DELETED", "short", 6),
            event("ADDED", "replaced", 7),
            event("DELETED", "old", 8),
        ]);
        assert_eq!(
            seen,
            [
                event("ADDED", "new", 4),
                event("MODIFIED", "replaced", 7),
                event("DELETED", "old", 8)
            ]
        );
    }

    #[test]
    fn incomplete_lines_stay_in_the_buffer() {
        let mut buffer = b"{\"a\":1}\n{\"b\":".to_vec();
        assert_eq!(whole_lines(&mut buffer), [json!({"a": 1})]);
        assert_eq!(whole_lines(&mut buffer), Vec::<Value>::new());
        buffer.extend_from_slice(b"2}\n");
        assert_eq!(whole_lines(&mut buffer), [json!({"b": 2})]);
    }
}
