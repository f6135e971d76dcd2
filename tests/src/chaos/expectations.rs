//! What the job's status must show within a time limit.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::Value;

use super::testbed::Testbed;

/// Interval between two requests.
const POLL: Duration = Duration::from_millis(200);

/// What is tested did not behave as it must during a fault.
#[derive(Debug)]
pub(super) struct Violation(pub(super) String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// Waits until the job is as expected. A job that is not in time is a [`Violation`]; for one that
/// ended meanwhile nothing is expected.
pub(super) fn expect(
    testbed: &Testbed,
    what: &str,
    limit: Duration,
    holds: impl Fn(&Value) -> bool,
) -> Result<()> {
    let (start, mut last) = (Instant::now(), Value::Null);
    while start.elapsed() < limit {
        if let Ok(job) = testbed.job() {
            if holds(&job) {
                return Ok(());
            }
            let succeeded = condition(&job, "Succeeded");
            if succeeded["status"] == "True" || succeeded["status"] == "False" {
                bail!("the job ended before its status showed {what}");
            }
            last = job;
        }
        std::thread::sleep(POLL);
    }
    let (seconds, conditions) = (limit.as_secs(), &last["status"]["conditions"]);
    let message = format!("the status did not show {what} within {seconds} s: {conditions}");
    Err(Violation(message).into())
}

/// The condition of a type.
pub(super) fn condition(job: &Value, type_: &str) -> Value {
    let mut conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == type_).cloned().unwrap_or_default()
}

pub(super) fn is_stalled(job: &Value) -> bool {
    condition(job, "Stalled")["status"] == "True"
}

/// Messages of all conditions.
pub(super) fn messages(job: &Value) -> impl Iterator<Item = &str> {
    let conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    conditions.filter_map(|condition| condition["message"].as_str())
}
