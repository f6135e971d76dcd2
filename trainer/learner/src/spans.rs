//! What a learner has done since its last report, for the trace of a step. Times are those of the
//! host, which waits for a GPU at the end of each minibatch.

use std::time::Instant;

use rljob_protocol::trace::{LearnerSpan, MAX_SPANS};

/// The spans; those beyond [`MAX_SPANS`] are left out.
#[derive(Debug, Default)]
pub struct Spans(Vec<(String, Instant, Instant)>);

impl Spans {
    /// Adds a span that ends now.
    pub fn end(&mut self, name: impl Into<String>, began: Instant) {
        if self.0.len() < MAX_SPANS {
            self.0.push((name.into(), began, Instant::now()));
        }
    }

    /// Removes the spans, for a report at `now`.
    pub fn take(&mut self, now: Instant) -> Vec<LearnerSpan> {
        let span = |(name, began, ended): (String, Instant, Instant)| LearnerSpan {
            name,
            ago: now.saturating_duration_since(began).as_secs_f64(),
            seconds: ended.saturating_duration_since(began).as_secs_f64(),
        };
        std::mem::take(&mut self.0).into_iter().map(span).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn spans_are_reported_once_relative_to_the_report() {
        let (mut spans, began) = (Spans::default(), Instant::now());
        spans.end("train step 1", began);
        let ended = spans.0[0].2;
        let reported = spans.take(ended + Duration::from_secs(2));
        let seconds = (ended - began).as_secs_f64();
        assert_eq!(reported.len(), 1);
        assert_eq!((reported[0].name.as_str(), reported[0].seconds), ("train step 1", seconds));
        assert!((reported[0].ago - seconds - 2.0).abs() < 1e-9, "{reported:?}");
        assert_eq!(spans.take(ended), []);
    }
}
