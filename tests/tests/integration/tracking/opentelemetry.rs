//! Traces of steps in a real OpenTelemetry Collector, which is killed meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use rljob_crds::names::{RUN_CONFIG_FILE, TRACES_FILE};
use rljob_protocol::trace::StepTrace;
use rljob_tests::Otelcol;
use rljob_tests::files::{otelcol, required};
use serde_json::Value;

use super::{STEPS, folder, start, wait_for_failure};

/// Steps during which no evaluation runs: those of `practise` are of every sixth step.
const WITHOUT_EVALUATION: RangeInclusive<u32> = 3..=5;

/// A span as the collector received it. Times in nanoseconds of Unix time.
struct Received {
    trace_id: String,
    span_id: String,
    parent_id: String,
    name: String,
    /// By its key, of the span's resource and of the span.
    attributes: BTreeMap<String, String>,
    times: (u64, u64),
}

/// Traces by step: the root and all other spans.
type Traces = BTreeMap<u32, (Received, Vec<Received>)>;

fn attributes(of: &Value) -> impl Iterator<Item = (String, String)> {
    let text = |value: &Value| {
        let value = value["stringValue"].as_str().or_else(|| value["intValue"].as_str());
        value.unwrap().to_owned()
    };
    let list = of["attributes"].as_array().into_iter().flatten();
    list.map(move |one| (one["key"].as_str().unwrap().to_owned(), text(&one["value"])))
}

fn received(collector: &Otelcol) -> Vec<Received> {
    let mut all = Vec::new();
    for resource in collector.resource_spans().unwrap() {
        for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
            let text = |key: &str| span[key].as_str().unwrap_or_default().to_owned();
            let time = |key: &str| text(key).parse::<u64>().unwrap();
            all.push(Received {
                trace_id: text("traceId"),
                span_id: text("spanId"),
                parent_id: text("parentSpanId"),
                name: text("name"),
                attributes: attributes(&resource["resource"]).chain(attributes(span)).collect(),
                times: (time("startTimeUnixNano"), time("endTimeUnixNano")),
            });
        }
    }
    all
}

/// Each step has one root.
fn by_step(spans: Vec<Received>) -> Traces {
    let (roots, others): (Vec<_>, Vec<_>) =
        spans.into_iter().partition(|span| span.parent_id.is_empty());
    let mut by_trace = BTreeMap::<String, Vec<Received>>::new();
    for span in others {
        by_trace.entry(span.trace_id.clone()).or_default().push(span);
    }
    let mut traces = Traces::new();
    for root in roots {
        let step = root.attributes["rljob.step"].parse().unwrap();
        let spans = by_trace.remove(&root.trace_id).unwrap_or_default();
        assert!(traces.insert(step, (root, spans)).is_none(), "step {step} was sent twice");
    }
    assert!(by_trace.is_empty(), "spans without a root");
    traces
}

/// Whether the coordinator recorded the step from its start: the first one after a restart, whose
/// rollouts were already journaled, has no spans of the coordinator.
fn has_root(recorded: &StepTrace) -> bool {
    recorded.spans.iter().any(|span| span.name == format!("step {}", recorded.step))
}

/// The spans of a step in the run's record are those received, with their times. A root that is
/// not in the record lasts as long as they do.
fn assert_same_spans(recorded: &StepTrace, (root, others): &(Received, Vec<Received>)) {
    let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
    let mut expected: Vec<(&str, (u64, u64))> = recorded
        .spans
        .iter()
        .map(|span| {
            let start = nanoseconds(span.start);
            (span.name.as_str(), (start, start + nanoseconds(span.seconds)))
        })
        .collect();
    if !has_root(recorded) {
        let start = expected.iter().map(|(_, (start, _))| *start).min().unwrap();
        let end = expected.iter().map(|(_, (_, end))| *end).max().unwrap();
        expected.push((root.name.as_str(), (start, end)));
    }
    let all = others.iter().chain([root]);
    let mut found: Vec<(&str, (u64, u64))> =
        all.map(|span| (span.name.as_str(), span.times)).collect();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected, "step {}", recorded.step);
}

/// Parents are of the same trace, began before and have the expected names.
fn assert_tree(recorded: &StepTrace, (root, others): &(Received, Vec<Received>)) {
    let step = recorded.step;
    let by_id: BTreeMap<&str, &Received> =
        others.iter().chain([root]).map(|span| (span.span_id.as_str(), span)).collect();
    assert_eq!(by_id.len(), others.len() + 1, "step {step}: ids are unique");
    let parent = |span: &Received| by_id[span.parent_id.as_str()].name.clone();
    let mut services = BTreeMap::<&str, Vec<(String, String)>>::new();
    for span in others {
        let edge = (span.name.clone(), parent(span));
        services.entry(&span.attributes["service.name"]).or_default().push(edge);
    }
    let (of_step, train) = (format!("step {step}"), format!("train step {step}"));
    let has = |service: &str, name: &str, parent: &str| {
        let edge = (name.to_owned(), parent.to_owned());
        assert!(services[service].contains(&edge), "{edge:?}: {services:#?}");
    };
    assert_eq!(root.name, of_step);
    has("rljob-learner", &train, &of_step);
    has("rljob-learner", "minibatch 1", &train);
    if has_root(recorded) {
        has("rljob-coordinator", &format!("rollouts of step {step}"), &of_step);
    }
    if has_root(recorded) && WITHOUT_EVALUATION.contains(&step) {
        has("rljob-engine", "requests", &format!("rollouts of step {step}"));
    }
    for span in others {
        assert!(span.times.0 <= span.times.1, "step {step}: {}", span.name);
    }
}

fn recorded(directory: &Path) -> Vec<StepTrace> {
    let lines = fs::read_to_string(directory.join(TRACES_FILE)).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_collector_gets_each_step_as_a_trace_although_it_and_the_coordinator_are_killed() {
    if required(otelcol()).is_none() {
        return;
    }
    let mut collector = Otelcol::start().unwrap();
    let tracker = format!("openTelemetry={{endpoint: '{}'}}", collector.endpoint());
    let folder = folder();
    let local = start(&folder, &tracker);
    local.wait_for_steps("practise", 2);
    collector.kill().unwrap();
    wait_for_failure(&local, "OpenTelemetry: the OpenTelemetry receiver is unreachable");
    local.wait_for_steps("practise", 5);
    local.kill("rljob-coordinator");
    local.wait_for_steps("practise", 7);
    collector.restart().unwrap();
    let directory = local.runs.join("default/practise");
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");

    let log = fs::read_to_string(directory.join("logs/coordinator.log")).unwrap();
    let (traces, recorded) = (by_step(received(&collector)), recorded(&directory));
    let steps: Vec<u64> = traces.keys().map(|step| u64::from(*step)).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>(), "{log}");
    let config = fs::read_to_string(directory.join(RUN_CONFIG_FILE)).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let without_root = recorded.iter().filter(|record| !has_root(record)).count();
    assert!(without_root <= 1, "only the first step after the restart may have no root: {log}");
    for record in &recorded {
        let trace = &traces[&record.step];
        assert_same_spans(record, trace);
        assert_tree(record, trace);
        let attempt = record.attempt.to_string();
        let expected = ["default", "practise", config["uid"].as_str().unwrap(), &attempt];
        for span in trace.1.iter().chain([&trace.0]) {
            let found = ["rljob.namespace", "rljob.job", "rljob.run", "rljob.attempt"];
            assert_eq!(found.map(|key| span.attributes[key].as_str()), expected);
        }
    }
}
