//! Spans of the step in progress, from all parts of the coordinator, for `traces.jsonl`.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rljob_protocol::trace::{LearnerSpan, MAX_SPANS, Span, StepTrace};

use crate::core::Now;

/// Process names of spans that are not an engine's.
pub const COORDINATOR: &str = "coordinator";
pub const LEARNERS: &str = "learners";
/// Name of the spans in which an engine has requests.
pub const REQUESTS: &str = "requests";
/// Name of the spans from the listing of an engine, or its first missed poll, to its answer.
pub const NO_ANSWER: &str = "no answer";

/// The spans since the last step. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Timeline(Arc<Mutex<Pending>>);

#[derive(Debug, Default)]
struct Pending {
    spans: Vec<Timed>,
    left_out: u32,
}

/// A span in the time of the coordinator's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    pub process: String,
    pub name: String,
    pub began: Now,
    pub ended: Now,
}

impl Timeline {
    /// Adds a span, unless the step has too many.
    pub fn add(&self, process: &str, name: String, (began, ended): (Now, Now)) {
        let mut pending = self.0.lock();
        if pending.spans.len() < MAX_SPANS {
            pending.spans.push(Timed { process: process.to_owned(), name, began, ended });
        } else {
            pending.left_out = pending.left_out.saturating_add(1);
        }
    }

    /// Adds what the learners report at `now`. Invalid spans are ignored: a trace is no reason to
    /// reject a step.
    pub fn add_learners(&self, spans: &[LearnerSpan], now: Now) {
        for span in spans.iter().filter(|span| span.is_valid()) {
            let began = now.saturating_sub(Duration::from_secs_f64(span.ago));
            let ended = began.saturating_add(Duration::from_secs_f64(span.seconds));
            self.add(LEARNERS, span.name.clone(), (began, ended));
        }
    }

    /// Removes the spans as the trace of a step; `now` is this Unix time in seconds.
    pub fn take(&self, (step, attempt): (u32, u32), now: Now, unix: f64) -> StepTrace {
        let Pending { spans, left_out } = std::mem::take(&mut *self.0.lock());
        let span = |span: Timed| Span {
            start: unix - now.as_secs_f64() + span.began.as_secs_f64(),
            seconds: span.ended.saturating_sub(span.began).as_secs_f64(),
            process: span.process,
            name: span.name,
        };
        StepTrace { step, attempt, spans: spans.into_iter().map(span).collect(), left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_step_has_the_spans_since_the_last_one_in_unix_time() {
        let timeline = Timeline::default();
        timeline.add(COORDINATOR, "rollouts of step 2".to_owned(), (at(10), at(13)));
        let reported =
            |name: &str, ago, seconds| LearnerSpan { name: name.to_owned(), ago, seconds };
        let spans = [reported("train", 4.0, 3.5), reported("train", f64::NAN, 1.0)];
        timeline.add_learners(&spans, at(20));
        let span = |process: &str, name: &str, start, seconds| Span {
            process: process.to_owned(),
            name: name.to_owned(),
            start,
            seconds,
        };
        let expected = StepTrace {
            step: 2,
            attempt: 1,
            spans: vec![
                span(COORDINATOR, "rollouts of step 2", 1010.0, 3.0),
                span(LEARNERS, "train", 1016.0, 3.5),
            ],
            left_out: 0,
        };
        assert_eq!(timeline.take((2, 1), at(20), 1020.0), expected);
        assert_eq!(timeline.take((3, 1), at(20), 1020.0).spans, []);
    }

    #[test]
    fn spans_beyond_the_limit_are_counted() {
        let timeline = Timeline::default();
        for _ in 0..MAX_SPANS + 3 {
            timeline.add(COORDINATOR, String::new(), (at(0), at(1)));
        }
        let trace = timeline.take((1, 0), at(1), 1.0);
        assert_eq!((trace.spans.len(), trace.left_out), (MAX_SPANS, 3));
        assert_eq!(
            timeline.take((2, 0), at(1), 1.0),
            StepTrace { step: 2, ..StepTrace::default() }
        );
    }
}
