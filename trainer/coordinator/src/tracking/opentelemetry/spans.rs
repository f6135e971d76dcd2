//! Spans of a step as OpenTelemetry has them.
//!
//! ```text
//!  step 12                         coordinator
//!  ├─ rollouts of step 12          coordinator
//!  │  └─ requests                  engine, while it served only these rollouts
//!  ├─ update to step-11.attempt-0  engine
//!  └─ train step 12                learner
//!     └─ minibatch 1               learner
//! ```
//! Ids are hashes of the run, the attempt, the step and the place in the record.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use rljob_crds::RunConfig;
use rljob_protocol::trace::{Span as RecordedSpan, StepTrace};
use sha2::{Digest, Sha256};

use crate::timeline::{COORDINATOR, LEARNERS, REQUESTS};

/// Bytes of the ids of traces and spans.
const TRACE_ID: usize = 16;
const SPAN_ID: usize = 8;
/// Time in nanoseconds by which a span may begin before its parent: records have Unix times in
/// seconds, which double precision rounds.
const ROUNDING: u64 = 1000;

/// The run that the spans are of.
pub struct Source {
    namespace: String,
    name: String,
    uid: String,
}

/// A span in nanoseconds of Unix time.
#[derive(Clone, Copy)]
struct Timed<'a> {
    process: &'a str,
    name: &'a str,
    start: u64,
    end: u64,
}

/// A step with its spans in the order in which they ended.
struct Step<'a> {
    trace_id: Vec<u8>,
    /// Place of the root in `spans`, unless the record has none.
    root: Option<usize>,
    spans: Vec<Timed<'a>>,
}

impl Source {
    /// The run of a configuration.
    pub fn of(config: &RunConfig) -> Self {
        let RunConfig { namespace, name, uid, .. } = config;
        Self { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }

    /// A request with the trace of a step.
    pub fn request(&self, trace: &StepTrace) -> ExportTraceServiceRequest {
        let step = Step::new(&self.uid, trace);
        let mut by_process = BTreeMap::<&str, Vec<Span>>::new();
        if let Some(root) = step.root_span(trace) {
            by_process.entry(COORDINATOR).or_default().push(root);
        }
        let others = step.spans.iter().enumerate().filter(|(index, _)| Some(*index) != step.root);
        for (index, timed) in others {
            let parent = step.span_id(step.parent(index, timed));
            let span = step.span(timed, step.span_id(Some(index)), parent);
            by_process.entry(timed.process).or_default().push(span);
        }
        let resource_spans = by_process.into_iter().map(|(process, spans)| {
            let scope = InstrumentationScope {
                name: "rljob".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            };
            ResourceSpans {
                resource: Some(self.resource(process, trace.attempt)),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope),
                    spans,
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            }
        });
        ExportTraceServiceRequest { resource_spans: resource_spans.collect() }
    }

    fn resource(&self, process: &str, attempt: u32) -> Resource {
        let service = match process {
            COORDINATOR => "rljob-coordinator",
            LEARNERS => "rljob-learner",
            _ => "rljob-engine",
        };
        let mut attributes = vec![
            text("service.name", service),
            text("rljob.namespace", &self.namespace),
            text("rljob.job", &self.name),
            text("rljob.run", &self.uid),
            number("rljob.attempt", attempt),
        ];
        if ![COORDINATOR, LEARNERS].contains(&process) {
            attributes.push(text("service.instance.id", process));
        }
        Resource { attributes, ..Resource::default() }
    }
}

impl<'a> Step<'a> {
    fn new(uid: &str, trace: &'a StepTrace) -> Self {
        let name = format!("step {}", trace.step);
        let is_root = |span: &RecordedSpan| span.process == COORDINATOR && span.name == name;
        let identity = format!("{uid}/{}/{}", trace.attempt, trace.step);
        Self {
            trace_id: hash(identity.as_bytes(), TRACE_ID),
            root: trace.spans.iter().position(is_root),
            spans: trace.spans.iter().map(Timed::of).collect(),
        }
    }

    /// Id of the span at this place, or of the root.
    fn span_id(&self, index: Option<usize>) -> Vec<u8> {
        let place = index.map_or_else(|| "root".to_owned(), |index| index.to_string());
        hash(&[&self.trace_id, place.as_bytes()].concat(), SPAN_ID)
    }

    /// The span that all others descend from. If the record has none, as that of the first step
    /// after a restart may, it lasts as long as they do.
    fn root_span(&self, trace: &StepTrace) -> Option<Span> {
        let recorded = self.root.and_then(|index| self.spans.get(index)).copied();
        let name = format!("step {}", trace.step);
        let timed = match recorded {
            Some(timed) => timed,
            None => Timed {
                process: COORDINATOR,
                name: &name,
                start: self.spans.iter().map(|span| span.start).min()?,
                end: self.spans.iter().map(|span| span.end).max()?,
            },
        };
        let mut span = self.span(&timed, self.span_id(None), Vec::new());
        span.attributes.push(number("rljob.step", trace.step));
        if trace.left_out > 0 {
            span.attributes.push(number("rljob.spans_left_out", trace.left_out));
        }
        Some(span)
    }

    /// Place of the parent of a span at `index`; `None` is the root.
    fn parent(&self, index: usize, span: &Timed) -> Option<usize> {
        match (span.process, span.name) {
            (COORDINATOR, _) => None,
            (LEARNERS, _) => {
                // Rank 0 does one thing at a time: what ended later and began before encloses it.
                let encloses = |(place, other): &(usize, &Timed)| {
                    *place > index
                        && other.process == LEARNERS
                        && other.start <= span.start.saturating_add(ROUNDING)
                };
                self.spans.iter().enumerate().find(encloses).map(|(place, _)| place)
            }
            (_, REQUESTS) => self.only_work_during(span),
            _ => None,
        }
    }

    /// Place of the rollouts or the evaluation during which the engine had requests, if there is
    /// only one.
    fn only_work_during(&self, span: &Timed) -> Option<usize> {
        let overlaps = |(place, other): &(usize, &Timed)| {
            Some(*place) != self.root
                && other.process == COORDINATOR
                && other.start < span.end
                && span.start < other.end
        };
        let mut found = self.spans.iter().enumerate().filter(overlaps);
        let (place, _) = found.next()?;
        found.next().is_none().then_some(place)
    }

    fn span(&self, timed: &Timed, span_id: Vec<u8>, parent_span_id: Vec<u8>) -> Span {
        Span {
            trace_id: self.trace_id.clone(),
            span_id,
            parent_span_id,
            name: timed.name.to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: timed.start,
            end_time_unix_nano: timed.end,
            ..Span::default()
        }
    }
}

impl<'a> Timed<'a> {
    fn of(span: &'a RecordedSpan) -> Self {
        let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
        let start = nanoseconds(span.start);
        let end = start.saturating_add(nanoseconds(span.seconds));
        Self { process: &span.process, name: &span.name, start, end }
    }
}

fn hash(bytes: &[u8], length: usize) -> Vec<u8> {
    Sha256::digest(bytes).iter().copied().take(length).collect()
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: u32) -> KeyValue {
    attribute(key, Value::IntValue(value.into()))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

#[cfg(test)]
mod tests;
