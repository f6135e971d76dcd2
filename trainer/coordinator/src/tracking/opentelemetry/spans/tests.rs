//! Trees, ids and resources of spans.

use super::*;

fn source() -> Source {
    let [namespace, name, uid] = ["lab", "sums", "a1"].map(ToOwned::to_owned);
    Source { namespace, name, uid }
}

fn span(process: &str, name: &str, start: f64, end: f64) -> RecordedSpan {
    RecordedSpan { process: process.to_owned(), name: name.to_owned(), start, seconds: end - start }
}

fn trace(spans: Vec<RecordedSpan>) -> StepTrace {
    StepTrace { step: 5, attempt: 2, spans, left_out: 0 }
}

/// Service, name and name of the parent of each span.
fn tree(trace: &StepTrace) -> Vec<[String; 3]> {
    let request = source().request(trace);
    let all = request.resource_spans.iter().flat_map(|resource| {
        let service = value(&resource.resource.as_ref().unwrap().attributes, "service.name");
        let spans = resource.scope_spans.iter().flat_map(|scope| &scope.spans);
        spans.map(move |span| (service.clone(), span))
    });
    let all: Vec<(String, &Span)> = all.collect();
    let parent = |span: &Span| {
        let found = all.iter().find(|(_, other)| other.span_id == span.parent_span_id);
        found.map_or_else(String::new, |(_, other)| other.name.clone())
    };
    all.iter().map(|(service, span)| [service.clone(), span.name.clone(), parent(span)]).collect()
}

fn value(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key).unwrap();
    match found.value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn spans_descend_from_their_step_through_what_encloses_them() {
    let trace = trace(vec![
        span("sums-inference-0", "update to step-4.attempt-2", 10.0, 10.5),
        span("coordinator", "evaluation of step 4", 10.5, 11.5),
        span("coordinator", "rollouts of step 5", 11.0, 13.0),
        span("learners", "wait for an instruction", 10.0, 13.0),
        span("learners", "fetch the batch", 13.0, 13.1),
        span("learners", "minibatch 1", 13.2, 14.0),
        span("learners", "train step 5", 13.1, 14.0),
        span("sums-inference-0", "requests", 10.6, 13.0),
        span("sums-inference-1", "requests", 12.0, 13.0),
        span("coordinator", "step 5", 10.0, 14.0),
    ]);
    let [coordinator, engine, learner] =
        ["rljob-coordinator", "rljob-engine", "rljob-learner"].map(ToOwned::to_owned);
    let row = |service: &String, name: &str, parent: &str| {
        [service.clone(), name.to_owned(), parent.to_owned()]
    };
    let expected = [
        row(&coordinator, "step 5", ""),
        row(&coordinator, "evaluation of step 4", "step 5"),
        row(&coordinator, "rollouts of step 5", "step 5"),
        row(&learner, "wait for an instruction", "step 5"),
        row(&learner, "fetch the batch", "step 5"),
        row(&learner, "minibatch 1", "train step 5"),
        row(&learner, "train step 5", "step 5"),
        row(&engine, "update to step-4.attempt-2", "step 5"),
        row(&engine, "requests", "step 5"),
        row(&engine, "requests", "rollouts of step 5"),
    ];
    assert_eq!(tree(&trace), expected);
}

#[test]
fn resources_name_the_run_and_ids_depend_on_run_attempt_and_step() {
    let recorded = trace(vec![
        span("learners", "train step 5", 13.0, 14.0),
        span("sums-inference-1", "requests", 12.0, 13.0),
        span("coordinator", "step 5", 10.0, 14.0),
    ]);
    let request = source().request(&recorded);
    let [coordinator, _, engine] = &request.resource_spans[..] else { panic!("{request:?}") };
    let attributes = &engine.resource.as_ref().unwrap().attributes;
    let keys = [
        "service.name",
        "service.instance.id",
        "rljob.namespace",
        "rljob.job",
        "rljob.run",
        "rljob.attempt",
    ];
    let found = keys.map(|key| value(attributes, key));
    assert_eq!(found, ["rljob-engine", "sums-inference-1", "lab", "sums", "a1", "2"]);
    let root = &coordinator.scope_spans[0].spans[0];
    assert_eq!((root.trace_id.len(), root.span_id.len()), (16, 8));
    assert_eq!(root.start_time_unix_nano, 10_000_000_000);
    assert_eq!(root.end_time_unix_nano, 14_000_000_000);
    assert_eq!(value(&root.attributes, "rljob.step"), "5");

    let trace_id = |trace: &StepTrace| {
        let request = source().request(trace);
        request.resource_spans[0].scope_spans[0].spans[0].trace_id.clone()
    };
    assert_eq!(source().request(&recorded), request, "a trace is sent again with its ids");
    assert_ne!(trace_id(&StepTrace { step: 6, ..recorded.clone() }), root.trace_id);
    assert_ne!(trace_id(&StepTrace { attempt: 3, ..recorded.clone() }), root.trace_id);
}

#[test]
fn a_step_without_a_recorded_span_lasts_as_long_as_the_others() {
    let spans =
        vec![span("learners", "train", 3.0, 4.0), span("sums-inference-0", "requests", 2.0, 3.5)];
    let request = source().request(&StepTrace { left_out: 7, ..trace(spans) });
    let root = &request.resource_spans[0].scope_spans[0].spans[0];
    assert_eq!((root.name.as_str(), root.parent_span_id.len()), ("step 5", 0));
    let times = (root.start_time_unix_nano, root.end_time_unix_nano);
    assert_eq!(times, (2_000_000_000, 4_000_000_000));
    assert_eq!(value(&root.attributes, "rljob.spans_left_out"), "7");
    let empty = source().request(&trace(Vec::new()));
    assert!(empty.resource_spans.is_empty(), "{empty:?}");
}
