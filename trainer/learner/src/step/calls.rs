//! Durations of the calls of a step. Times are those of the host; each call waits for a GPU at its
//! end.

use std::time::Instant;

use rljob_crds::dataflow::LearnerCall;
use rljob_protocol::metrics::StepMetrics;

/// Seconds by call, in the order in which the calls first ended.
#[derive(Debug, Default)]
pub struct CallTimes(pub(super) Vec<(LearnerCall, f64)>);

impl CallTimes {
    /// Adds the time since `began` to a call.
    pub fn end(&mut self, call: LearnerCall, began: Instant) {
        let seconds = began.elapsed().as_secs_f64();
        match self.0.iter_mut().find(|(known, _)| *known == call) {
            Some((_, sum)) => *sum += seconds,
            None => self.0.push((call, seconds)),
        }
    }

    /// Sets the metric of each call.
    pub fn report(&self, step: &mut StepMetrics) {
        for (call, seconds) in &self.0 {
            step.scalars.set(call.seconds(), *seconds);
        }
    }
}
