//! Continuous invariant checks: reported progress never decreases or exceeds the run, the run
//! directory never returns to an earlier coordinator, and visible checkpoints are complete.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rljob_crds::names::{CHECKPOINTS_DIR, METRICS_FILE};
use serde_json::Value;

use super::testbed::{STEPS, Testbed};

/// Status fields that never decrease.
const GROWING: [&str; 5] =
    ["/attempt", "/restarts", "/epoch", "/progress/step", "/checkpoint/step"];

/// Interval of invariant checks.
const POLL: Duration = Duration::from_millis(300);
/// Interval of condition checks; short because phases may be short.
const PHASE_POLL: Duration = Duration::from_millis(5);

/// Last observed state, and violations so far.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    status: Value,
    /// The complete lines of metrics.jsonl.
    metrics: String,
    /// Epoch of the last owner of the run directory.
    claimed_epoch: u64,
    violations: Vec<String>,
}

impl Monitor {
    /// Waits until a condition holds, at most for `limit`, and checks invariants meanwhile.
    pub(super) fn until(
        &mut self,
        testbed: &Testbed,
        limit: Duration,
        holds: impl Fn(&Self) -> bool,
    ) {
        let (start, mut polled) = (Instant::now(), Instant::now());
        while start.elapsed() < limit && !holds(self) {
            if polled.elapsed() >= POLL {
                self.poll(testbed);
                polled = Instant::now();
            }
            std::thread::sleep(PHASE_POLL);
        }
    }

    /// Checks once. State that cannot be read is checked in the next iteration.
    fn poll(&mut self, testbed: &Testbed) {
        // Read before the status, which may be older than the end of the fault.
        let may_stall = testbed.expects_stall();
        if let Ok(job) = testbed.job() {
            self.check_status(&job["status"], may_stall || testbed.expects_stall());
        }
        self.check_claim(testbed.claimed_epoch());
        let directory = testbed.run_directory();
        self.check_metrics(&fs::read_to_string(directory.join(METRICS_FILE)).unwrap_or_default());
        for (folder, why) in torn_checkpoints(&directory) {
            self.check(false, || format!("{} is visible but incomplete: {why}", folder.display()));
        }
    }

    fn check_status(&mut self, new: &Value, may_stall: bool) {
        for field in GROWING {
            let (before, after) = (
                self.status.pointer(field).and_then(Value::as_u64),
                new.pointer(field).and_then(Value::as_u64),
            );
            self.check(after >= before, || {
                format!("status{} went from {before:?} to {after:?}", field.replace('/', "."))
            });
        }
        self.check_bounds(new);
        let before = self.condition("Succeeded");
        self.status = new.clone();
        let after = self.condition("Succeeded");
        self.check(before != "True" || after == "True", || {
            format!("Succeeded changed from True to {after:?}")
        });
        let stalled = self.condition("Stalled");
        self.check(stalled != "True" || may_stall, || {
            format!("the job is stalled: {}", stalled_condition(new))
        });
    }

    /// Lies of a coordinator are not in the status.
    fn check_bounds(&mut self, new: &Value) {
        let progress = &new["progress"];
        if progress.is_null() {
            return;
        }
        let (step, total) = (progress["step"].as_u64(), progress["totalSteps"].as_u64());
        let steps = Some(STEPS as u64);
        self.check(step <= steps && total == steps, || {
            format!("the status has the progress {progress} of {STEPS} steps")
        });
    }

    fn check_claim(&mut self, epoch: u64) {
        let before = self.claimed_epoch;
        // 0 while the file is missing or being replaced.
        self.check(epoch >= before || epoch == 0, || {
            format!("the run directory returned from epoch {before} to epoch {epoch}")
        });
        self.claimed_epoch = before.max(epoch);
    }

    fn check_metrics(&mut self, text: &str) {
        let whole = text.rsplit_once('\n').map_or(String::new(), |(whole, _)| format!("{whole}\n"));
        let kept = whole.starts_with(&self.metrics);
        self.check(kept, || format!("{METRICS_FILE} lost lines:\n{whole}"));
        let steps: Vec<u64> = whole
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["step"].as_u64())
            .collect();
        self.check(steps.iter().copied().eq(1..=steps.len() as u64), || {
            format!("{METRICS_FILE} has the steps {steps:?}")
        });
        if kept {
            self.metrics = whole;
        }
    }

    fn condition(&self, type_: &str) -> String {
        let conditions = self.status["conditions"].as_array().into_iter().flatten();
        let found = conditions.into_iter().find(|condition| condition["type"] == type_);
        found.and_then(|condition| condition["status"].as_str()).unwrap_or_default().to_owned()
    }

    pub(super) fn succeeded(&self) -> bool {
        self.condition("Succeeded") == "True"
    }

    /// Number of reported steps.
    pub(super) fn steps(&self) -> usize {
        self.metrics.lines().count()
    }

    /// Whether the job has not failed.
    pub(super) fn can_succeed(&self) -> bool {
        self.condition("Succeeded") != "False"
    }

    /// Checks the restart count against the number of faults that may count one.
    pub(super) fn check_restarts(&mut self, most: usize) {
        let spent = self.status["restarts"].as_u64().unwrap_or_default();
        let last = self.status["lastFailure"].clone();
        self.check(spent <= most as u64, || {
            format!(
                "{spent} restarts were counted for {most} faults that may cause one; last failure: \
                    {last}",
            )
        });
    }

    /// Records a violation unless `holds`; repeated ones are recorded once.
    pub(super) fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.record(vec![what()]);
        }
    }

    pub(super) fn record(&mut self, violations: Vec<String>) {
        for violation in violations {
            if !self.violations.contains(&violation) {
                eprintln!("chaos: VIOLATION {violation}");
                self.violations.push(violation);
            }
        }
    }

    pub(super) fn violations(&self) -> &[String] {
        &self.violations
    }
}

/// The condition `Stalled` as JSON.
fn stalled_condition(status: &Value) -> String {
    let condition = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Stalled");
    condition.map(ToString::to_string).unwrap_or_default()
}

/// Checkpoints with a manifest whose files are missing or have another size.
fn torn_checkpoints(directory: &Path) -> BTreeMap<PathBuf, String> {
    let folders = fs::read_dir(directory.join(CHECKPOINTS_DIR))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    folders.filter_map(|folder| Some((folder.clone(), torn(&folder)?))).collect()
}

fn torn(folder: &Path) -> Option<String> {
    let manifest = fs::read(folder.join("manifest.json")).ok()?;
    let why = match serde_json::from_slice::<Value>(&manifest) {
        Ok(manifest) => manifest["files"].as_array().into_iter().flatten().find_map(|file| {
            let path = folder.join(file["name"].as_str().unwrap_or_default());
            let bytes = fs::metadata(&path).map(|metadata| metadata.len()).ok();
            (bytes != file["size"].as_u64()).then(|| {
                format!("{} has {bytes:?} bytes, the manifest says {file}", path.display())
            })
        }),
        Err(error) => Some(error.to_string()),
    };
    // Pruning deletes the manifest first.
    why.filter(|_| folder.join("manifest.json").exists())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Monitor, STEPS};

    #[test]
    fn decreasing_status_fields_are_violations() {
        let mut monitor = Monitor::default();
        let progress = json!({"step": 7, "totalSteps": STEPS});
        for attempt in [1, 2] {
            let status = json!({"attempt": attempt, "epoch": 2, "progress": progress});
            monitor.check_status(&status, false);
        }
        assert_eq!(monitor.violations(), [""; 0]);
        monitor.check_status(&json!({"attempt": 1, "epoch": 2}), false);
        assert_eq!(
            monitor.violations(),
            [
                "status.attempt went from Some(2) to Some(1)",
                "status.progress.step went from Some(7) to None"
            ]
        );
    }

    #[test]
    fn progress_beyond_the_run_an_earlier_owner_and_unexpected_stalls_are_violations() {
        let violations = |status: serde_json::Value, may_stall| {
            let mut monitor = Monitor::default();
            monitor.check_status(&status, may_stall);
            monitor.violations().len()
        };
        let progress = |step: usize, total: usize| {
            violations(json!({"progress": {"step": step, "totalSteps": total}}), false)
        };
        let violations_of =
            [progress(STEPS, STEPS), progress(STEPS + 1, STEPS), progress(5, STEPS + 1)];
        assert_eq!(violations_of, [0, 1, 1]);
        let stalled = json!({"conditions": [{"type": "Stalled", "status": "True"}]});
        assert_eq!([violations(stalled.clone(), true), violations(stalled, false)], [0, 1]);
        let mut monitor = Monitor::default();
        for epoch in [1, 2, 0, 2, 1] {
            monitor.check_claim(epoch);
        }
        let returned = "the run directory returned from epoch 2 to epoch 1";
        assert_eq!(monitor.violations(), [returned]);
    }

    #[test]
    fn lost_and_skipped_metrics_lines_are_violations() {
        let mut monitor = Monitor::default();
        monitor.check_metrics("{\"step\":1}\n{\"step\":2}\n{\"st");
        monitor.check_metrics("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
        assert_eq!(monitor.violations(), [""; 0]);
        monitor.check_metrics("{\"step\":1}\n{\"step\":3}\n");
        assert_eq!(monitor.violations().len(), 2, "{:?}", monitor.violations());
    }
}
