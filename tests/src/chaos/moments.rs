//! The phases of a job, in which a fault may strike, each found by what it leaves in the run
//! directory or in the status.

use std::fs;
use std::path::Path;

use rljob_crds::names::{CHECKPOINTS_DIR, METRICS_FILE, WEIGHTS_DIR};
use serde_json::Value;

use super::job::STEPS;
use super::scene::{COORDINATOR, LEARNER, Scene};

/// A phase of a job.
pub(super) struct Moment {
    pub(super) name: &'static str,
    pub(super) is_now: fn(&Scene) -> bool,
}

/// All of them. `any` is more likely than each of the others, which a job reaches once or for an
/// instant.
pub(super) const MOMENTS: &[Moment] = &[
    Moment { name: "any", is_now: |_| true },
    Moment { name: "any", is_now: |_| true },
    Moment { name: "any", is_now: |_| true },
    Moment { name: "creating", is_now: |scene| scene.processes(COORDINATOR).is_empty() },
    Moment {
        name: "loading",
        is_now: |scene| !scene.processes(LEARNER).is_empty() && steps(&scene.run_directory()) == 0,
    },
    Moment {
        name: "first rollout",
        is_now: |scene| {
            steps(&scene.run_directory()) == 0
                && scene.job().is_ok_and(|job| any_engine_is_ready(&job))
        },
    },
    Moment { name: "steady", is_now: |scene| steps(&scene.run_directory()) > 0 },
    Moment {
        name: "in weight sync",
        is_now: |scene| {
            any_folder(&scene.run_directory().join(WEIGHTS_DIR), |folder| {
                folder.extension().is_some_and(|end| end == "partial")
            })
        },
    },
    Moment {
        name: "in checkpoint",
        is_now: |scene| {
            any_folder(&scene.run_directory().join(CHECKPOINTS_DIR), |folder| {
                !folder.join("manifest.json").exists()
            })
        },
    },
    Moment {
        name: "draining",
        is_now: |scene| {
            scene.job().is_ok_and(|job| job["spec"]["suspend"] == true)
                && !scene.processes(LEARNER).is_empty()
        },
    },
    // The last step is made, and the job has not succeeded.
    Moment { name: "finishing", is_now: |scene| steps(&scene.run_directory()) == STEPS },
];

/// Phases in the order of a job's life.
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
/// Of phases that hold at the same time, the one to name first.
const NARROWEST: [&str; 8] = [
    "in weight sync",
    "in checkpoint",
    "finishing",
    "draining",
    "creating",
    "first rollout",
    "steady",
    "loading",
];

/// The phase in which the job is. Before its learners start it is being created.
pub(super) fn phase(scene: &Scene) -> &'static str {
    let is_now =
        |name: &&str| MOMENTS.iter().any(|moment| moment.name == *name && (moment.is_now)(scene));
    NARROWEST.into_iter().find(is_now).unwrap_or("creating")
}

fn any_engine_is_ready(job: &Value) -> bool {
    job.pointer("/status/inference/engines")
        .and_then(Value::as_array)
        .is_some_and(|engines| engines.iter().any(|engine| engine["state"] == "Ready"))
}

/// Steps that are recorded.
pub(super) fn steps(run_directory: &Path) -> usize {
    fs::read_to_string(run_directory.join(METRICS_FILE)).unwrap_or_default().matches('\n').count()
}

fn any_folder(parent: &Path, is: impl Fn(&Path) -> bool) -> bool {
    fs::read_dir(parent).into_iter().flatten().flatten().any(|entry| is(&entry.path()))
}
