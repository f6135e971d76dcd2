//! Phases of a job, derived from the run directory and the status. The schedule injects faults in
//! given phases.

use std::fs;
use std::path::Path;

use rljob_crds::names::{CHECKPOINTS_DIR, METRICS_FILE, WEIGHTS_DIR};
use serde_json::Value;

use super::testbed::{COORDINATOR, LEARNER, STEPS, Testbed};

/// A phase of a job.
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) is_current: fn(&Testbed) -> bool,
}

/// Phases to draw from. `any` is listed three times because jobs pass through most other phases
/// once or briefly.
pub(super) const TRIGGERS: &[Phase] = &[
    Phase { name: "any", is_current: |_| true },
    Phase { name: "any", is_current: |_| true },
    Phase { name: "any", is_current: |_| true },
    Phase { name: "creating", is_current: |testbed| testbed.processes(COORDINATOR).is_empty() },
    Phase {
        name: "loading",
        is_current: |testbed| {
            !testbed.processes(LEARNER).is_empty() && steps(&testbed.run_directory()) == 0
        },
    },
    Phase {
        name: "first rollout",
        is_current: |testbed| {
            steps(&testbed.run_directory()) == 0
                && testbed.job().is_ok_and(|job| any_engine_is_ready(&job))
        },
    },
    Phase { name: "steady", is_current: |testbed| steps(&testbed.run_directory()) > 0 },
    Phase {
        name: "in weight sync",
        is_current: |testbed| {
            any_folder(&testbed.run_directory().join(WEIGHTS_DIR), |folder| {
                folder.extension().is_some_and(|end| end == "partial")
            })
        },
    },
    Phase {
        name: "in checkpoint",
        is_current: |testbed| {
            any_folder(&testbed.run_directory().join(CHECKPOINTS_DIR), |folder| {
                !folder.join("manifest.json").exists()
            })
        },
    },
    Phase {
        name: "draining",
        is_current: |testbed| {
            testbed.job().is_ok_and(|job| job["spec"]["suspend"] == true)
                && !testbed.processes(LEARNER).is_empty()
        },
    },
    // All steps are done and the job has not succeeded yet.
    Phase { name: "finishing", is_current: |testbed| steps(&testbed.run_directory()) == STEPS },
];

/// Phases in the order of a job's lifecycle.
pub(super) const PHASES: [&str; 8] = [
    "creating",
    "loading",
    "first rollout",
    "steady",
    "in weight sync",
    "in checkpoint",
    "draining",
    "finishing",
];
/// Phases in the order of precedence when several apply.
const BY_SPECIFICITY: [&str; 8] = [
    "in weight sync",
    "in checkpoint",
    "finishing",
    "draining",
    "creating",
    "first rollout",
    "steady",
    "loading",
];

/// The current phase; `creating` before learners start.
pub(super) fn current_phase(testbed: &Testbed) -> &'static str {
    let is_current = |name: &&str| {
        TRIGGERS.iter().any(|trigger| trigger.name == *name && (trigger.is_current)(testbed))
    };
    BY_SPECIFICITY.into_iter().find(is_current).unwrap_or("creating")
}

fn any_engine_is_ready(job: &Value) -> bool {
    job.pointer("/status/inference/engines")
        .and_then(Value::as_array)
        .is_some_and(|engines| engines.iter().any(|engine| engine["state"] == "Ready"))
}

/// Number of recorded steps.
pub(super) fn steps(run_directory: &Path) -> usize {
    fs::read_to_string(run_directory.join(METRICS_FILE)).unwrap_or_default().matches('\n').count()
}

fn any_folder(parent: &Path, is: impl Fn(&Path) -> bool) -> bool {
    fs::read_dir(parent).into_iter().flatten().flatten().any(|entry| is(&entry.path()))
}
