//! A call of a tool, and how it ended.

use serde::Serialize;
use serde_json::{Map, Value};

/// How a call ended, and its result for the model.
pub type Answer = (Outcome, String);

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Result,
    /// The tool rejects the arguments or fails on them.
    Error,
    /// The tool exceeds its time.
    TimeLimit,
    /// The tool exceeds the limit of its output.
    OutputLimit,
    /// The call is malformed.
    Malformed,
    /// The job has no tool of this name.
    Unknown,
    /// The completion has too many calls.
    Skipped,
    /// No retries are left, or the tool is down for too long.
    Failed,
}

impl Outcome {
    /// Value of the label `outcome` of the metric of calls.
    pub fn label(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Error => "error",
            Self::TimeLimit => "time_limit",
            Self::OutputLimit => "output_limit",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

/// A valid call, and the body of its HTTP request.
#[derive(Debug, Serialize)]
pub struct Request<'a> {
    pub name: &'a str,
    pub arguments: &'a Map<String, Value>,
    pub session: &'a str,
    /// From 1.
    pub turn: u32,
    /// From 0 in the turn.
    pub call: u32,
}
