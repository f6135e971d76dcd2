//! Frames of local runs and of jobs.

use rljob_protocol::status::{CoordinatorStatus, RequestCounts};
use serde_json::json;

use super::*;
use crate::cache::Pod;
use crate::cli::job_view::view;
use crate::decide::test_support::report;
use crate::local::inspect::test_support::run_directory;

/// The view of a job with two engines after a step.
fn view_after(step: u32, reward: f64, queued: Option<u32>) -> JobView {
    let engine = |index: u32, state: &str| {
        let name = format!("sums-inference-{index}");
        json!({"name": name, "state": state, "version": "step-1.attempt-0"})
    };
    let status = json!({
        "attempt": 0, "restarts": 0, "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{
            "type": "Succeeded", "status": "Unknown", "reason": "Running",
            "message": "training", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
        "progress": {
            "step": step, "totalSteps": 10, "reward": reward,
            "tokensPerSecond": 1000 * step, "queuedRequests": queued,
            "time": "2026-01-01T00:01:00Z",
        },
        "inference": {
            "desired": 2, "ready": 1,
            "engines": [engine(0, "Ready"), engine(1, "Unreachable")],
        },
    });
    let mut job = crate::validate::test_support::minimal();
    job.status = Some(serde_json::from_value(status).unwrap());
    let pod = |index: u32| -> Pod {
        let (name, role) = (format!("sums-inference-{index}"), "inference");
        let pod = json!({
            "metadata": {"name": name, "labels": {"rljob.dev/role": role}},
            "spec": {"nodeName": "node-1"},
            "status": {"conditions": [{"type": "ContainersReady", "status": "True"}]},
        });
        serde_json::from_value(pod).unwrap()
    };
    view(&job, Ok(&[pod(0), pod(1)]))
}

#[test]
fn frames_of_a_job_have_its_engines_and_curves_since_the_start_of_the_command() {
    let mut curves = Vec::new();
    let now = "2026-01-01T00:01:30Z".parse().unwrap();
    let mut frame =
        |view: JobView| text(&job_frame(&mut curves, &view, now)).replace(&" ".repeat(50), "…");
    assert_eq!(
        frame(view_after(1, 0.0, None)),
        "\
reward                0  ▁…           0 to 0
tokens/s           1000  ▁…           1000 to 1000
rljob lab/sums  Running: training
├─ run           attempt 0, 0 of 3 restarts, started 90s ago
├─ progress      step 1 of 10, reward 0.000, 1000 tokens/s (30s ago)
├─ coordinator   0 of 1 ready
└─ inference     1 of 2 ready
   ├─ sums-inference-0  Ready  node-1  engine Ready, weights step-1.attempt-0
   └─ sums-inference-1  Ready  node-1  engine Unreachable, weights step-1.attempt-0"
    );
    frame(view_after(2, 0.25, Some(7)));
    // A step that is read again has its newest values.
    frame(view_after(3, 0.5, Some(4)));
    assert_eq!(
        frame(view_after(3, 1.0, Some(0))),
        "\
reward            1.000  ▁▃█…         0 to 1.000
tokens/s           3000  ▁▅█…         1000 to 3000
queued                0  █▁…          0 to 7.000
rljob lab/sums  Running: training
├─ run           attempt 0, 0 of 3 restarts, started 90s ago
├─ progress      step 3 of 10, reward 1.000, 3000 tokens/s (30s ago)
├─ coordinator   0 of 1 ready
└─ inference     1 of 2 ready
   ├─ sums-inference-0  Ready  node-1  engine Ready, weights step-1.attempt-0
   └─ sums-inference-1  Ready  node-1  engine Unreachable, weights step-1.attempt-0"
    );
}

#[test]
fn curves_have_at_most_their_width_and_keep_their_range() {
    let values: Vec<f64> = (0..8).map(f64::from).collect();
    assert_eq!(sparkline(&values, (0.0, 7.0)), "▁▂▃▄▅▆▇█");
    assert_eq!(sparkline(&[2.0, 2.0], (2.0, 2.0)), "▁▁");
    let many: Vec<f64> = (0..1_000).map(f64::from).collect();
    let text = sparkline(&many, (0.0, 999.0));
    assert!(text.chars().count() <= WIDTH && text.starts_with('▁') && text.ends_with('█'));
}

#[tokio::test]
async fn a_local_run_is_drawn_with_its_curves() {
    let runs = tempfile::tempdir().unwrap();
    let directory = run_directory(runs.path());
    let path = directory.path().join(METRICS_FILE);
    let step = |step: u32, reward: f64| {
        serde_json::to_string(&StepMetrics::with_scalars(step, [("reward", reward)])).unwrap()
    };
    let steps = [step(1, 0.0), step(2, 0.25), step(2, 0.5), step(3, 1.0)];
    std::fs::write(&path, steps.map(|line| line + "\n").concat()).unwrap();
    let target = directory.path().display().to_string();
    let mut source = Source::Local(Local {
        directory: target.into(),
        tail: Tail::new(path),
        steps: BTreeMap::new(),
        queued: Curve::new(),
    });
    let status = CoordinatorStatus {
        step: 3,
        requests: Some(RequestCounts { running: 4, queued: 12 }),
        ..report()
    };
    let file = directory.path().join("status.json");
    std::fs::write(file, serde_json::to_string(&status).unwrap()).unwrap();
    let text = text(&source.read().await.unwrap());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "lab/sums  Running", "{text}");
    let rest = " ".repeat(WIDTH - 3);
    let curve = format!("reward            1.000  ▁▅█{rest}  0 to 1.000");
    assert_eq!(lines[1], curve, "{text}");
    let rest = " ".repeat(WIDTH - 1);
    let queued = format!("queued           12.000  ▁{rest}  12.000 to 12.000");
    assert_eq!(lines[2], queued, "{text}");
    assert!(lines[3].contains("3/10"), "{text}");
}
