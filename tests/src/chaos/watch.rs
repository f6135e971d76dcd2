//! What must hold at any time: nothing that was reported is taken back, and what is visible is
//! whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rljob_crds::names::{CHECKPOINTS_DIR, METRICS_FILE};
use serde_json::Value;

use super::scene::Scene;

/// Numbers of the status that only grow.
const GROWING: [&str; 5] =
    ["/attempt", "/restarts", "/epoch", "/progress/step", "/checkpoint/step"];

/// Between two looks at everything.
const LOOK: Duration = Duration::from_millis(300);
/// Between two looks at what is waited for: a moment may be short.
const GLANCE: Duration = Duration::from_millis(5);

/// What was seen so far, and what did not hold.
#[derive(Debug, Default)]
pub(super) struct Watch {
    status: Value,
    /// The whole lines of metrics.jsonl.
    metrics: String,
    violations: Vec<String>,
}

impl Watch {
    /// Waits until it holds, for so long at most, and watches meanwhile.
    pub(super) fn until(&mut self, scene: &Scene, limit: Duration, holds: impl Fn(&Self) -> bool) {
        let (start, mut looked) = (Instant::now(), Instant::now());
        while start.elapsed() < limit && !holds(self) {
            if looked.elapsed() >= LOOK {
                self.look(scene);
                looked = Instant::now();
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Looks once. What cannot be read just now is looked at the next time.
    fn look(&mut self, scene: &Scene) {
        if let Ok(job) = scene.job() {
            self.status(&job["status"]);
        }
        let directory = scene.run_directory();
        self.records(&fs::read_to_string(directory.join(METRICS_FILE)).unwrap_or_default());
        for (folder, why) in torn_checkpoints(&directory) {
            self.check(false, || {
                format!("{} is visible and not complete: {why}", folder.display())
            });
        }
    }

    fn status(&mut self, new: &Value) {
        for field in GROWING {
            let (before, after) = (
                self.status.pointer(field).and_then(Value::as_u64),
                new.pointer(field).and_then(Value::as_u64),
            );
            self.check(after >= before, || {
                format!("status{} went from {before:?} to {after:?}", field.replace('/', "."))
            });
        }
        let before = self.condition("Succeeded");
        self.status = new.clone();
        let after = self.condition("Succeeded");
        self.check(before != "True" || after == "True", || {
            format!("the job had succeeded, and now Succeeded is {after:?}")
        });
        let stalled = self.condition("Stalled");
        self.check(stalled != "True", || format!("the job is stalled: {}", stalled_by(new)));
    }

    fn records(&mut self, text: &str) {
        let whole = text.rsplit_once('\n').map_or(String::new(), |(whole, _)| format!("{whole}\n"));
        let kept = whole.starts_with(&self.metrics);
        self.check(kept, || format!("{METRICS_FILE} lost lines:\n{whole}"));
        let steps: Vec<u64> = whole
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["step"].as_u64())
            .collect();
        self.check(steps.iter().copied().eq(1..=steps.len() as u64), || {
            format!("{METRICS_FILE} holds the steps {steps:?}")
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

    /// Whether the job can still succeed.
    pub(super) fn goes_on(&self) -> bool {
        self.condition("Succeeded") != "False"
    }

    /// Restarts that were spent, against faults that may spend one.
    pub(super) fn restarts_within(&mut self, most: usize) {
        let spent = self.status["restarts"].as_u64().unwrap_or_default();
        let last = self.status["lastFailure"].clone();
        self.check(spent <= most as u64, || format!("{spent} restarts were counted, and {most} faults may count; the last failure is {last}"));
    }

    /// Writes down what does not hold, once.
    pub(super) fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.take(vec![what()]);
        }
    }

    pub(super) fn take(&mut self, violations: Vec<String>) {
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

/// Why a job is stalled.
fn stalled_by(status: &Value) -> String {
    let condition = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Stalled");
    condition.map(ToString::to_string).unwrap_or_default()
}

/// Checkpoints that have a manifest and lack what it names.
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
            (bytes != file["size"].as_u64())
                .then(|| format!("{} has {bytes:?} bytes, and {file} was written", path.display()))
        }),
        Err(error) => Some(error.to_string()),
    };
    // One that was pruned meanwhile lost its manifest first.
    why.filter(|_| folder.join("manifest.json").exists())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Watch;

    #[test]
    fn what_was_reported_is_not_taken_back() {
        let mut watch = Watch::default();
        watch.status(&json!({"attempt": 1, "epoch": 2, "progress": {"step": 7}}));
        watch.status(&json!({"attempt": 2, "epoch": 2, "progress": {"step": 7}}));
        assert_eq!(watch.violations(), [""; 0]);
        watch.status(&json!({"attempt": 1, "epoch": 2}));
        assert_eq!(
            watch.violations(),
            [
                "status.attempt went from Some(2) to Some(1)",
                "status.progress.step went from Some(7) to None"
            ]
        );
    }

    #[test]
    fn every_step_is_recorded_once_and_stays() {
        let mut watch = Watch::default();
        watch.records("{\"step\":1}\n{\"step\":2}\n{\"st");
        watch.records("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
        assert_eq!(watch.violations(), [""; 0]);
        watch.records("{\"step\":1}\n{\"step\":3}\n");
        assert_eq!(watch.violations().len(), 2, "{:?}", watch.violations());
    }
}
