//! Traces of steps in the Trace Event Format of Chrome, which Perfetto reads. Pure.
//!
//! A process of the run is a process of the trace. Spans that overlap without one being within the
//! other, such as rollouts of two steps, are in several threads.

use std::collections::BTreeMap;

use rljob_protocol::trace::{Span, StepTrace};
use serde_json::{Value, json};

/// The document, with the name of the run. Times start at the first span.
pub fn document(run: &str, traces: &[StepTrace]) -> Value {
    let spans =
        || traces.iter().flat_map(|trace| trace.spans.iter().map(move |span| (trace, span)));
    let origin = spans().map(|(_, span)| span.start).fold(f64::INFINITY, f64::min);
    let mut processes: BTreeMap<&str, Vec<(&StepTrace, &Span)>> = BTreeMap::new();
    for (trace, span) in spans() {
        processes.entry(&span.process).or_default().push((trace, span));
    }
    let mut events = Vec::new();
    for (pid, (process, mut spans)) in (1_u32..).zip(processes) {
        events.push(json!({
            "ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": process},
        }));
        // Of two spans that start together, the longer one contains the other.
        spans.sort_by(|(_, a), (_, b)| {
            a.start.total_cmp(&b.start).then(b.seconds.total_cmp(&a.seconds))
        });
        let mut lanes: Vec<Vec<f64>> = Vec::new();
        for (trace, span) in spans {
            let lane = lane(&mut lanes, span);
            events.push(json!({
                "ph": "X", "pid": pid, "tid": lane, "name": span.name,
                "ts": micros(span.start - origin), "dur": micros(span.seconds),
                "args": {"step": trace.step, "attempt": trace.attempt},
            }));
        }
    }
    let left_out: u64 = traces.iter().map(|trace| u64::from(trace.left_out)).sum();
    // JSON has no infinity: without spans, null.
    json!({
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"run": run, "startUnixSeconds": origin, "spansLeftOut": left_out},
    })
}

/// The first thread in which the span follows the others or is within the last open one. `lanes`
/// has the ends of the open spans of each thread, outermost first.
fn lane(lanes: &mut Vec<Vec<f64>>, span: &Span) -> usize {
    let end = span.start + span.seconds;
    for (index, open) in lanes.iter_mut().enumerate() {
        while open.last().is_some_and(|last| *last <= span.start) {
            open.pop();
        }
        if open.last().is_none_or(|last| end <= *last) {
            open.push(end);
            return index;
        }
    }
    lanes.push(vec![end]);
    lanes.len().saturating_sub(1)
}

/// Whole microseconds.
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round().max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(process: &str, name: &str, start: f64, seconds: f64) -> Span {
        Span { process: process.to_owned(), name: name.to_owned(), start, seconds }
    }

    /// Name, process, thread, start and duration of each span.
    fn drawn(document: &Value) -> Vec<(String, u64, u64, u64, u64)> {
        let events = document["traceEvents"].as_array().unwrap().iter();
        let number = |event: &Value, key: &str| event[key].as_u64().unwrap();
        events
            .filter(|event| event["ph"] == "X")
            .map(|event| {
                let [pid, tid, ts, dur] = ["pid", "tid", "ts", "dur"].map(|key| number(event, key));
                (event["name"].as_str().unwrap().to_owned(), pid, tid, ts, dur)
            })
            .collect()
    }

    #[test]
    fn spans_that_overlap_are_in_several_threads_and_nested_ones_in_one() {
        let first = StepTrace {
            step: 3,
            attempt: 1,
            spans: vec![
                span("coordinator", "rollouts of step 3", 100.0, 2.0),
                span("learners", "minibatch 1", 102.0, 1.0),
                span("learners", "train step 3", 102.0, 1.5),
            ],
            left_out: 2,
        };
        let second = StepTrace {
            step: 4,
            attempt: 1,
            spans: vec![
                span("coordinator", "rollouts of step 4", 101.0, 3.0),
                span("coordinator", "evaluation of step 3", 102.5, 0.25),
            ],
            left_out: 1,
        };
        let document = document("lab/sums", &[first, second]);
        let event = |name: &str, pid, tid, ts, dur| (name.to_owned(), pid, tid, ts, dur);
        let expected = [
            event("rollouts of step 3", 1, 0, 0, 2_000_000),
            event("rollouts of step 4", 1, 1, 1_000_000, 3_000_000),
            event("evaluation of step 3", 1, 0, 2_500_000, 250_000),
            event("train step 3", 2, 0, 2_000_000, 1_500_000),
            event("minibatch 1", 2, 0, 2_000_000, 1_000_000),
        ];
        assert_eq!(drawn(&document), expected);
        assert_eq!(document["traceEvents"][1]["args"], json!({"step": 3, "attempt": 1}));
        let other = json!({"run": "lab/sums", "startUnixSeconds": 100.0, "spansLeftOut": 3});
        assert_eq!(document["otherData"], other);
    }

    #[test]
    fn a_step_without_spans_is_an_empty_trace() {
        let document = document("lab/sums", &[StepTrace::default()]);
        assert_eq!(document["traceEvents"], json!([]));
        assert_eq!(document["otherData"]["startUnixSeconds"], Value::Null);
    }
}
