//! Traces of steps of a real run, against its metrics.

use std::fs;
use std::process::Command;

use rljob_tests::files::binary;
use rljob_tests::process::run;
use serde_json::Value;

use crate::local_run::baseline;

/// A span of a trace: process, name, start and duration in seconds.
type Span = (String, String, f64, f64);

/// The spans of a Chrome trace, in its order.
fn spans(document: &Value) -> Vec<Span> {
    let events = document["traceEvents"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let process = |pid: &Value| {
        let named = |event: &&Value| event["name"] == "process_name" && event["pid"] == *pid;
        text(&events.iter().find(named).unwrap()["args"]["name"])
    };
    let seconds = |value: &Value| value.as_u64().unwrap() as f64 / 1e6;
    let spans = events.iter().filter(|event| event["ph"] == "X").map(|event| {
        let (start, duration) = (seconds(&event["ts"]), seconds(&event["dur"]));
        (process(&event["pid"]), text(&event["name"]), start, duration)
    });
    spans.collect()
}

#[test]
fn a_trace_has_what_learners_engines_and_the_coordinator_did_in_each_step() {
    let directory = baseline().folder.join("baseline/default/practise");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let mut rljob = Command::new(binary("rljob").unwrap());
    rljob.arg("trace").arg(&directory).args(["--steps=12", "--output"]).arg(&file);
    run(&mut rljob).unwrap();
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["otherData"]["run"], "default/practise");
    assert_eq!(document["otherData"]["spansLeftOut"], 0);
    let spans = spans(&document);
    let find = |process: &str, name: &str| -> (f64, f64) {
        let mut found = spans.iter().filter(|span| span.0 == process && span.1 == name);
        let (_, _, start, seconds) = found.next().unwrap_or_else(|| panic!("{process}: {name}"));
        assert_eq!(found.next(), None, "{process}: {name}");
        (*start, *seconds)
    };
    let metrics = fs::read_to_string(directory.join("metrics.jsonl")).unwrap();
    let metrics: Vec<Value> =
        metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(metrics.len(), 12);
    for step in metrics {
        let (number, value) = (&step["step"], |name: &str| step[name].as_f64().unwrap());
        let (begun, duration) = find("coordinator", &format!("step {number}"));
        let (trained, seconds) = find("learners", &format!("train step {number}"));
        assert!(begun <= trained && trained + seconds <= begun + duration, "step {number}");
        let expected = value("trainSeconds");
        assert!((seconds - expected).abs() < 0.1, "step {number}: {seconds} of {expected}");
        let (sampled, rollouts) = find("coordinator", &format!("rollouts of step {number}"));
        assert!((rollouts - value("rolloutSeconds")).abs() < 0.1, "step {number}");
        // Some engine has requests while the batch is sampled.
        let is_request = |span: &&Span| span.1 == "requests" && span.0.contains("inference");
        let mut requests = spans.iter().filter(is_request);
        assert!(requests.any(|(_, _, start, seconds)| {
            *start < sampled + rollouts && sampled < start + seconds
        }));
    }
    let updates = spans.iter().filter(|span| span.1.starts_with("update to step-"));
    assert!(updates.count() >= 11, "each step's weights reach an engine");
}
