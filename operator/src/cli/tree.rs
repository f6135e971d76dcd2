//! Tree of an RLJob for a terminal. Pure.
//!
//! ```text
//! rljob lab/sums  Running: training
//! ├─ progress      step 3 of 10, reward 0.250
//! ├─ inference     1 of 2 ready
//! │  └─ sums-inference-0  Ready  node-1  Ready, weights step-3.attempt-0
//! └─ waits for     InferenceReady (PodsNotReady): …
//! ```

use std::fmt::Write;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rljob_crds::status::{
    CheckpointStatus, EvaluationStatus, MemoryPart, MemoryStatus, Progress, SuiteStatus, gib,
};

use super::job_view::{JobView, PodView, RoleView};
use crate::local::lines::one_line;

/// Width of the names of branches.
const WIDTH: usize = 13;

/// A branch, with its leaves.
struct Branch {
    name: &'static str,
    text: String,
    leaves: Vec<String>,
}

/// The tree at a time.
pub fn tree(view: &JobView, now: Timestamp) -> String {
    let mut text = format!("rljob {}/{}  {}", view.namespace, view.name, view.status);
    if !view.message.is_empty() {
        let _ = write!(text, ": {}", one_line(&view.message));
    }
    let branches = branches(view, now);
    let last = branches.len().saturating_sub(1);
    for (index, branch) in branches.iter().enumerate() {
        let (corner, line) = if index == last { ("└─", "   ") } else { ("├─", "│  ") };
        let _ = write!(text, "\n{corner} {:WIDTH$} {}", branch.name, branch.text);
        let last = branch.leaves.len().saturating_sub(1);
        for (index, leaf) in branch.leaves.iter().enumerate() {
            let corner = if index == last { "└─" } else { "├─" };
            let _ = write!(text, "\n{line}{corner} {leaf}");
        }
    }
    text
}

fn branches(view: &JobView, now: Timestamp) -> Vec<Branch> {
    let leaf = |name, text| Branch { name, text, leaves: Vec::new() };
    let mut branches = vec![leaf("run", run(view, now))];
    branches.extend(view.progress.as_ref().map(|at| leaf("progress", progress(at, now))));
    let newest = view.progress.as_ref().and_then(|progress| progress.evaluation.as_ref());
    branches.extend(
        newest.map(|newest| Branch {
            leaves: suites(newest),
            ..leaf("evaluation", evaluation(newest))
        }),
    );
    branches.extend(view.checkpoint.as_ref().map(|at| leaf("checkpoint", checkpoint(at, now))));
    let planned = |name, memory: &MemoryStatus| Branch {
        leaves: memory_parts(memory),
        ..leaf(name, memory.to_string())
    };
    branches.extend(view.memory.as_ref().map(|memory| planned("memory", memory)));
    branches.extend(view.group_memory.as_ref().map(|memory| planned("group memory", memory)));
    branches.extend(view.roles.iter().filter(|role| is_shown(role)).map(role));
    branches.extend(view.pods_unknown.iter().map(|cause| leaf("pods", one_line(cause))));
    branches.extend(view.last_failure.as_ref().map(|failure| {
        let pod = failure.pod.as_ref().map(|pod| format!(" in {pod}")).unwrap_or_default();
        let code = failure.exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
        let (reason, message) = (&failure.reason, one_line(&failure.message));
        let at = ago(failure.time.as_ref(), now);
        leaf("last failure", format!("{reason}{pod}{code}{at}: {message}"))
    }));
    branches.extend(view.last_incident.as_ref().map(|incident| {
        let (reason, message) = (&incident.reason, one_line(&incident.message));
        leaf("last incident", format!("{reason}{}: {message}", ago(incident.time.as_ref(), now)))
    }));
    branches.extend(view.waits_for.iter().map(|wait| {
        let (condition, reason, message) = (&wait.condition, &wait.reason, one_line(&wait.message));
        let since = age(wait.since, now);
        leaf("waits for", format!("{condition} for {since} ({reason}): {message}"))
    }));
    branches
}

/// A role without pods, desired or existing, is not shown.
fn is_shown(role: &RoleView) -> bool {
    role.desired > 0 || !role.pods.is_empty()
}

fn run(view: &JobView, now: Timestamp) -> String {
    let mut text =
        format!("attempt {}, {} of {} restarts", view.attempt, view.restarts, view.max_restarts);
    match (view.start_time, view.completion_time) {
        (Some(start), Some(end)) => {
            let _ = write!(text, ", took {}, ended {} ago", age(start, end), age(end, now));
        }
        (Some(start), None) => {
            let _ = write!(text, ", started {} ago", age(start, now));
        }
        (None, _) => {}
    }
    if view.suspended {
        text.push_str(", suspended");
    }
    text
}

fn progress(progress: &Progress, now: Timestamp) -> String {
    let mut text = format!("step {} of {}", progress.step, progress.total_steps);
    if let Some(reward) = progress.reward {
        let _ = write!(text, ", reward {reward:.3}");
    }
    if let Some(speed) = progress.tokens_per_second {
        let _ = write!(text, ", {speed:.0} tokens/s");
    }
    if let Some(rejected) = progress.rejected_samples {
        let _ = write!(text, ", {rejected} samples rejected");
    }
    if let Some(queued) = progress.queued_requests.filter(|queued| *queued > 0) {
        let _ = write!(text, ", {queued} requests queued");
    }
    text + &ago(progress.time.as_ref(), now)
}

fn evaluation(evaluation: &EvaluationStatus) -> String {
    let mut text = format!("step {}", evaluation.step);
    let values =
        [("sampled", evaluation.sampled), ("greedy", evaluation.greedy), ("loss", evaluation.loss)];
    for (name, value) in values {
        if let Some(value) = value {
            let _ = write!(text, ", {name} {value:.3}");
        }
    }
    text
}

/// The suites of an evaluation, with their steps.
fn suites(evaluation: &EvaluationStatus) -> Vec<String> {
    let line = |suite: &SuiteStatus| {
        let mut text = format!("{}  step {}", suite.name, suite.step);
        for (name, value) in [("sampled", suite.sampled), ("greedy", suite.greedy)] {
            if let Some(value) = value {
                let _ = write!(text, ", {name} {value:.3}");
            }
        }
        text
    };
    evaluation.suites.iter().map(line).collect()
}

fn checkpoint(checkpoint: &CheckpointStatus, now: Timestamp) -> String {
    format!("step {}, {}{}", checkpoint.step, checkpoint.path, ago(checkpoint.time.as_ref(), now))
}

/// The parts of a memory plan, as a column.
pub(super) fn memory_parts(memory: &MemoryStatus) -> Vec<String> {
    let width = memory.parts.iter().map(|part| part.name.chars().count()).max().unwrap_or_default();
    let line = |part: &MemoryPart| format!("{:width$}  {:>9}", part.name, gib(part.bytes));
    memory.parts.iter().map(line).collect()
}

fn role(role: &RoleView) -> Branch {
    let width = |text: fn(&PodView) -> &str| {
        role.pods.iter().map(|pod| text(pod).chars().count()).max().unwrap_or_default()
    };
    let node: fn(&PodView) -> &str = |pod| pod.node.as_deref().unwrap_or("-");
    let (names, states, nodes) = (width(|pod| &pod.name), width(|pod| &pod.state), width(node));
    let leaf = |pod: &PodView| {
        let (name, state) = (&pod.name, &pod.state);
        let mut text = format!("{name:names$}  {state:states$}  {:nodes$}", node(pod));
        if let Some(engine) = pod.engine {
            let weights = pod.weights.as_deref().unwrap_or("none");
            let _ = write!(text, "  engine {engine:?}, weights {weights}");
        }
        if pod.restarts > 0 {
            let _ = write!(text, "  {} restarts of containers", pod.restarts);
        }
        text.trim_end().to_owned()
    };
    let text = format!("{} of {} ready", role.ready, role.desired);
    Branch { name: role.role, text, leaves: role.pods.iter().map(leaf).collect() }
}

fn ago(time: Option<&Time>, now: Timestamp) -> String {
    time.map(|time| format!(" ({} ago)", age(time.0, now))).unwrap_or_default()
}

/// Time between two instants in its largest unit, as kubectl shows ages. Clocks differ: at least 0.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    let [minutes, hours, days] = [60, 3_600, 86_400].map(|unit| seconds.div_euclid(unit));
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{minutes}m"),
        7_200..172_800 => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cache::Pod;
    use crate::cli::job_view::view;

    #[test]
    fn a_job_is_shown_as_a_tree() {
        let mut job = crate::validate::test_support::minimal();
        let condition = |type_: &str, status: &str, reason: &str, message: &str| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let status = json!({
            "attempt": 1, "restarts": 1, "startTime": "2026-01-01T00:00:00Z",
            "conditions": [
                condition("Succeeded", "Unknown", "Running", "training"),
                condition("TrainerReady", "False", "PodsNotReady", "sums-trainer-0\nis missing"),
            ],
            "progress": {
                "step": 3, "totalSteps": 10, "reward": 0.25, "tokensPerSecond": 1234.4,
                "rejectedSamples": 12,
                "time": "2026-01-01T00:59:00Z",
                "evaluation": {
                    "step": 2, "sampled": 0.5, "greedy": 0.625,
                    "suites": [{"name": "code", "step": 1, "greedy": 0.25}],
                },
            },
            "checkpoint": {"step": 2, "path": "checkpoints/step-2.attempt-0"},
            "lastFailure": {
                "reason": "LearnerExited", "message": "out of memory", "exitCode": 1,
                "pod": "sums-trainer-0",
            },
            "inference": {
                "desired": 1, "ready": 1, "engines": [{
                    "name": "sums-inference-0", "state": "Stale", "version": "step-2.attempt-0",
                }],
            },
            "trainer": {"desired": 1, "ready": 0},
        });
        job.status = Some(serde_json::from_value(status).unwrap());
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "sums-inference-0", "labels": {"rljob.dev/role": "inference"}},
            "spec": {"nodeName": "node-1"},
            "status": {"conditions": [{"type": "ContainersReady", "status": "True"}]},
        }))
        .unwrap();
        let expected = "\
rljob lab/sums  Running: training
├─ run           attempt 1, 1 of 3 restarts, started 60m ago
├─ progress      step 3 of 10, reward 0.250, 1234 tokens/s, 12 samples rejected (60s ago)
├─ evaluation    step 2, sampled 0.500, greedy 0.625
│  └─ code  step 1, greedy 0.250
├─ checkpoint    step 2, checkpoints/step-2.attempt-0
├─ coordinator   0 of 1 ready
├─ inference     1 of 1 ready
│  └─ sums-inference-0  Ready  node-1  engine Stale, weights step-2.attempt-0
├─ trainer       0 of 1 ready
├─ last failure  LearnerExited in sums-trainer-0, exit code 1: out of memory
└─ waits for     TrainerReady for 60m (PodsNotReady): sums-trainer-0 | is missing";
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        assert_eq!(tree(&view(&job, Ok(&[pod])), now), expected);
    }

    #[test]
    fn memory_of_learners_on_gpus_is_a_branch_with_its_parts() {
        let mut job = crate::validate::test_support::minimal();
        let status = json!({
            "attempt": 0, "restarts": 0,
            "memory": {
                "totalBytes": 15_u64 << 30, "usableBytes": 12_u64 << 30, "fits": false,
                "peakBytes": 11_u64 << 30, "sharding": "Gradients", "recomputedLayers": 2,
                "layers": 2,
                "parts": [
                    {"name": "weights", "bytes": 13_u64 << 30},
                    {"name": "activations", "bytes": 2_u64 << 30},
                ],
            },
            "trainerGroups": [{
                "name": "frozen", "desired": 1, "ready": 1,
                "memory": {
                    "totalBytes": 4_u64 << 30, "fits": true, "sharding": "Full",
                    "recomputedLayers": 0, "layers": 2,
                    "parts": [{"name": "reference model", "bytes": 3_u64 << 30}],
                },
            }],
        });
        job.status = Some(serde_json::from_value(status).unwrap());
        let expected = "
├─ memory        15.0 GiB planned of 12.0 GiB on each GPU, may not fit; 11.0 GiB used at most; \
sharding Gradients, 2 of 2 layers are computed again
│  ├─ weights       13.0 GiB
│  └─ activations    2.0 GiB
├─ group memory  4.0 GiB planned; sharding Full, 0 of 2 layers are computed again
│  └─ reference model    3.0 GiB
";
        let text = tree(&view(&job, Ok(&[])), Timestamp::UNIX_EPOCH);
        assert!(text.contains(expected), "{text}");
    }
}
