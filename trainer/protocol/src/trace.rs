//! Trace of a step: what the processes of a run did, and when. A line of `traces.jsonl` is one
//! [`StepTrace`].
//!
//! Learners report their spans with the step, as times before the report, so that their clocks need
//! not agree with the coordinator's.

use serde::{Deserialize, Serialize};

/// Most spans of a step that are kept.
pub const MAX_SPANS: usize = 4096;
/// Longest name in bytes.
const MAX_NAME: usize = 128;
/// Longest time before a report in seconds: a month.
const MAX_SECONDS: f64 = 31.0 * 86_400.0;

/// What happened from the end of the previous step to the end of this one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepTrace {
    /// The step.
    pub step: u32,
    /// Attempt of the learner group.
    pub attempt: u32,
    /// Spans in the order in which they ended; those of an engine or of rollouts ahead may have
    /// begun before the step.
    pub spans: Vec<Span>,
    /// Spans that the coordinator left out because there were more than [`MAX_SPANS`]; learners
    /// report no more than that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Work of a process without interruption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// `coordinator`, `learners`, or the name of an engine.
    pub process: String,
    /// What it did.
    pub name: String,
    /// Unix time of its start in seconds, by the coordinator's clock.
    pub start: f64,
    /// Its duration.
    pub seconds: f64,
}

/// Work of rank 0 of the learners before a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LearnerSpan {
    /// What it did.
    pub name: String,
    /// Seconds from its start to the report.
    pub ago: f64,
    /// Its duration in seconds.
    pub seconds: f64,
}

impl LearnerSpan {
    /// Whether the span can be kept: a short name, and times in range.
    pub fn is_valid(&self) -> bool {
        let is_time = |seconds: f64| (0.0..=MAX_SECONDS).contains(&seconds);
        self.name.len() <= MAX_NAME && is_time(self.ago) && is_time(self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::LearnerSpan;

    #[test]
    fn spans_of_learners_have_short_names_and_finite_times() {
        let span = |name: &str, ago, seconds| LearnerSpan { name: name.to_owned(), ago, seconds };
        for (span, expected) in [
            (span("train", 2.0, 1.5), true),
            (span(&"x".repeat(129), 2.0, 1.5), false),
            (span("train", -1.0, 1.5), false),
            (span("train", 2.0, f64::NAN), false),
            (span("train", f64::INFINITY, 1.0), false),
        ] {
            assert_eq!(span.is_valid(), expected, "{span:?}");
        }
    }
}
