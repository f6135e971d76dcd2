//! Resuming with another number of learners.

use std::fs;
use std::path::Path;

use rljob_crds::names::METRICS_FILE;
use rljob_protocol::metrics::{LOSS, StepMetrics};
use rustix::process::Signal;

use crate::local_run::{INTERRUPTED, LocalRun, baseline, evaluations};

/// Metrics of all steps; each step must appear once, in order.
fn steps(run: &Path) -> Vec<StepMetrics> {
    let lines = fs::read_to_string(run.join(METRICS_FILE)).unwrap();
    let steps: Vec<StepMetrics> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(steps.iter().map(|metrics| metrics.step).eq(1..=steps.len() as u32), "{lines}");
    steps
}

/// Asserts that losses are equal except for rounding.
fn assert_close(what: &str, losses: impl Iterator<Item = (u32, f64, f64)>) {
    for (step, one, other) in losses {
        assert!(
            (one - other).abs() <= 1e-3 * one.abs(),
            "{what} of step {step}: {one} and {other}"
        );
    }
}

#[test]
fn a_run_resumes_with_more_and_with_fewer_learners() {
    let folder = &baseline().folder;
    let start = |imitate: u32, practise: u32| {
        let sets = [("imitate", imitate), ("practise", practise)]
            .map(|(job, processes)| format!("{job}:spec.trainer.processesPerReplica={processes}"));
        LocalRun::start_with(folder, "other-ranks", &["--set", &sets[0], "--set", &sets[1]])
    };
    let run = |runs: &str, job: &str| folder.join(runs).join("default").join(job);
    let local = start(1, 2);
    local.wait_for_steps("imitate", 45);
    local.signal(Signal::INT);
    let (code, output) = local.end();
    assert_eq!(code, Some(INTERRUPTED), "{output}");
    let resumed_at = steps(&run("other-ranks", "imitate")).len();
    let local = start(2, 2);
    local.wait_for_steps("practise", 7);
    local.kill_all();
    let (code, output) = start(2, 1).end();
    assert_eq!(code, Some(0), "{output}");

    let (disturbed, expected) =
        (steps(&run("other-ranks", "imitate")), steps(&run("baseline", "imitate")));
    let losses: Vec<(u32, f64, f64)> = disturbed
        .iter()
        .zip(&expected)
        .map(|(one, other)| (one.step, one.get(LOSS).unwrap(), other.get(LOSS).unwrap()))
        .collect();
    assert_eq!(losses.len(), 120);
    assert!(
        losses[..resumed_at].iter().all(|(_, one, other)| one.to_bits() == other.to_bits()),
        "{losses:?}"
    );
    assert!(
        losses[resumed_at..].iter().any(|(_, one, other)| one.to_bits() != other.to_bits()),
        "the number of learners did not change"
    );
    assert_close("the loss", losses.into_iter());
    let validations = evaluations(&run("other-ranks", "imitate"))
        .into_iter()
        .zip(evaluations(&run("baseline", "imitate")));
    assert_close(
        "the validation loss",
        validations.map(|(one, other)| (one.step, one.loss.unwrap(), other.loss.unwrap())),
    );
    assert_eq!(steps(&run("other-ranks", "practise")).len(), 12);
    assert_eq!(last_world_size(&run("other-ranks", "practise")), (12, 1));
}

/// Step and world size of the newest checkpoint.
fn last_world_size(run: &Path) -> (u64, u64) {
    let manifests = fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| {
        let manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(entry.unwrap().path().join("manifest.json")).unwrap())
                .unwrap();
        let step = manifest["version"]
            .as_str()
            .unwrap()
            .strip_prefix("step-")
            .unwrap()
            .split('.')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        (step, manifest["worldSize"].as_u64().unwrap())
    });
    manifests.max().unwrap()
}
