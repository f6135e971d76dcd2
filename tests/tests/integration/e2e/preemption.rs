//! A pod of higher priority that preempts a trainer on a real node: the learners write a checkpoint
//! on notice, wait for a node, and continue; lost steps are counted. Then the lines of the second
//! attempt in the log.

use std::process::Command;

use rljob_tests::files::binary;
use rljob_tests::process::{run as run_command, wait_until};
use rljob_tests::{Cluster, Namespace};
use serde_json::{Value, json};

use super::{LIMIT, NODES, Run, cluster, steps_done};

const JOB: &str = "preempted";
const TRAINER: &str = "preempted-trainer-0";
/// A device of which the cluster has one.
const SEAT: &str = "example.com/seat";

/// The job of suspend.yaml on the seat. Its checkpoint interval is longer than the test.
fn manifest() -> String {
    let text = include_str!("suspend.yaml").replace("name: pause", &format!("name: {JOB}"));
    let mut job: Value = serde_yaml::from_str(&text).unwrap();
    job["spec"]["trainer"] = json!({"resources": {"limits": {SEAT: 1}}});
    job["spec"]["checkpoint"] = json!({"everySteps": 100_000});
    job.to_string()
}

/// A pod of the class `seat-urgent` that takes the seat.
fn urgent_pod() -> String {
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "seat-urgent"}, "value": 1000,
    });
    let container = json!({
        "name": "pause", "image": "rljob.local/pause:test", "imagePullPolicy": "Never",
        "resources": {"limits": {SEAT: 1}},
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "urgent"},
        "spec": {
            "priorityClassName": "seat-urgent", "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [class, pod]}).to_string()
}

/// Adds the seat to a node.
fn add_seat(cluster: &Cluster) {
    let seat = json!([{"op": "add", "path": "/status/capacity/example.com~1seat", "value": "1"}]);
    cluster.api().unwrap().edit("/api/v1/nodes/node-1/status", &seat).unwrap();
}

/// Lines of the trainers of an attempt, as `rljob logs` prints them in JSON.
fn lines_of_attempt(namespace: &Namespace, attempt: u64) -> Vec<Value> {
    let mut command = Command::new(binary("rljob").unwrap());
    command.args(["logs", "--cluster", "--namespace", &namespace.name, "--kubeconfig"]);
    command.arg(cluster().kubeconfig()).args([JOB, "trainer", "--output=json"]);
    command.arg(format!("--attempt={attempt}"));
    let text = run_command(&mut command).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_preempted_trainer_loses_no_step_and_continues_when_it_has_a_node() {
    let _nodes = NODES.read();
    let cluster = cluster();
    add_seat(cluster);
    let namespace = Namespace::create(cluster, JOB).unwrap();
    let run = Run::start(cluster, &namespace, &manifest(), JOB);
    run.wait_for_steps(5);
    assert_eq!(run.status()["checkpoint"], Value::Null);

    namespace.kubectl.apply(&urgent_pod()).unwrap();
    run.wait_for_incident("Preempted", TRAINER);
    namespace
        .kubectl
        .run(&["wait", "--for=condition=Ready", "pod/urgent", "--timeout=300s"])
        .unwrap();
    let checkpoint = || run.status()["checkpoint"]["step"].as_u64();
    wait_until("a checkpoint on notice", LIMIT, || Ok(checkpoint().is_some())).unwrap();
    let (done, kept) = (steps_done(&run.directory), checkpoint().unwrap());
    println!("preemption: {} of {done} steps lost", done - kept);
    assert_eq!(kept, done, "the checkpoint has the last step");

    namespace.kubectl.run(&["delete", "pod/urgent"]).unwrap();
    run.wait_for_steps(done + 5);
    let status = run.status();
    assert_eq!(status["restarts"], 0, "a preemption is no failure: {status}");
    let seen = run.steps();
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>(), "every step is recorded once");

    let attempt = status["attempt"].as_u64().unwrap();
    let of_job = |line: &Value| {
        assert_eq!((&line["job"], &line["pod"]), (&json!(JOB), &json!(TRAINER)), "{line}");
        assert_eq!(line["attempt"], attempt, "{line}");
    };
    let lines = lines_of_attempt(&namespace, attempt);
    let ours: Vec<&Value> = lines.iter().filter(|line| line["timestamp"].is_string()).collect();
    assert!(!ours.is_empty(), "{lines:?}");
    ours.into_iter().for_each(of_job);
    assert_eq!(lines_of_attempt(&namespace, attempt + 1), Vec::<Value>::new());
}
