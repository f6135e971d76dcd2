//! Hung processes, lost nodes and drains in one run: the job continues, no restart is counted, and
//! the status reports each event.

use rljob_tests::partition::Partition;
use rljob_tests::process::wait_until;
use rljob_tests::procfs::resume;
use rljob_tests::{Cluster, Namespace};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::monitors::prometheus_finds_the_pods_and_fires_alerts;
use super::{LIMIT, NODES, Run, cluster, steps_done};

/// Checkpoint interval of pods.yaml.
const EVERY_STEPS: u64 = 20;

impl Run<'_> {
    /// Waits until the last failure has this reason and returns it.
    fn wait_for_failure(&self, reason: &str) -> Value {
        let failure = || self.status()["lastFailure"].take();
        wait_until(reason, LIMIT, || Ok(failure()["reason"] == reason)).unwrap();
        self.log(reason);
        failure()
    }

    /// Waits until the last failure is a killed process with this reason.
    fn wait_for_killed(&self, reason: &str) {
        let failure = self.wait_for_failure(reason);
        assert_eq!(failure["exitCode"], 137, "{failure}");
    }

    fn wait_for_all_ready(&self) {
        self.wait_for_condition("TrainerReady");
        self.wait_for_condition("InferenceReady");
    }
}

/// The newest process whose command line contains `command`.
fn newest_process(cluster: &Cluster, command: &str) -> Pid {
    let processes = cluster
        .pod_processes("")
        .into_iter()
        .filter(|process| process.command_line.contains(command));
    processes
        .max_by_key(|process| process.started)
        .unwrap_or_else(|| panic!("no process matches {command:?}"))
        .pid
}

fn stop_newest(cluster: &Cluster, command: &str) {
    kill_process(newest_process(cluster, command), Signal::STOP).unwrap();
}

/// Evicts a pod through the eviction API, as a drain does.
fn evict(namespace: &Namespace, pod: &str) {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", namespace.name);
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}})
            .to_string();
    namespace
        .kubectl
        .run_with_input(&["create", "--raw", &path, "--filename=-"], &eviction)
        .unwrap();
}

/// Names of the job's pods on a node.
fn pods_on(namespace: &Namespace, node: &str) -> Vec<String> {
    let on_it = format!("--field-selector=spec.nodeName={node}");
    let names = namespace
        .kubectl
        .run(&[
            "get",
            "pods",
            "--selector=rljob.dev/job=stays",
            &on_it,
            "--output=jsonpath={.items[*].metadata.name}",
        ])
        .unwrap();
    names.split_whitespace().map(str::to_owned).collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one lifecycle")]
fn a_job_continues_after_hung_processes_a_lost_node_and_a_drain() {
    let _alone = NODES.write();
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "stays").unwrap();
    let run = Run::start(cluster, &namespace, include_str!("pods.yaml"), "stays");
    run.wait_for_steps(3);
    run.wait_for_all_ready();
    prometheus_finds_the_pods_and_fires_alerts(cluster, &run);
    run.wait_for_all_ready();
    gates_are_open(&namespace);
    scale_up_and_down(&run);
    learners_fail_by_a_rule(&run);
    learners_wait_for_each_other(&run);

    // A stopped process accepts connections and sends no response. The coordinator detects a hung
    // engine; kubelets detect the others.
    stop_newest(cluster, "rljob-engine --model-path=/data/model ");
    stop_newest(cluster, "rljob-supervisor --config");
    run.wait_for_killed("SupervisorExited");
    run.wait_for_incident("EngineHung", "stays-inference-");
    run.wait_for_progress();
    run.wait_for_all_ready();
    stop_newest(cluster, "rljob-coordinator --config");
    run.wait_for_killed("CoordinatorExited");
    run.wait_for_progress();
    run.wait_for_all_ready();

    lose_a_pod_with_a_hung_runtime(cluster, &run);

    // The node of a trainer pod; the leading operator may be on it.
    let lost = namespace
        .kubectl
        .run(&["get", "pod/stays-trainer-0", "--output=jsonpath={.spec.nodeName}"])
        .unwrap();
    let remaining = if lost == "node-1" { "node-2" } else { "node-1" };
    let gone = pods_on(&namespace, &lost);
    let stopped = cluster.stop_node(&lost).unwrap();
    run.log(&format!("{lost} was stopped with {gone:?}"));
    for pod in gone {
        run.wait_for_incident("PodLost", &pod);
    }
    run.wait_for_all_ready();
    run.wait_for_progress();
    drop(stopped);
    cluster
        .kubectl()
        .run(&["wait", "--for=condition=Ready", &format!("node/{lost}"), "--timeout=120s"])
        .unwrap();
    // The returned node may restart containers of the deleted pods before it learns of their
    // deletion; the group then forms again.
    run.wait_for_all_ready();
    run.wait_for_progress();

    evict_between_checkpoints(&run);
    // The drain evicts the operator too.
    cluster
        .kubectl()
        .run(&[
            "drain",
            remaining,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=240s",
        ])
        .unwrap();
    run.log(&format!("{remaining} is drained"));
    run.wait_for_all_ready();
    run.wait_for_progress();
    cluster.kubectl().run(&["uncordon", remaining]).unwrap();

    let status = run.status();
    assert_eq!(status["restarts"], 0, "no restart is counted: {status}");
    let seen = run.steps();
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>(), "every step is recorded once");
    namespace.kubectl.run(&["delete", "rljob/stays", "--wait"]).unwrap();
    namespace
        .kubectl
        .run(&["wait", "--for=delete", "pods", "--selector=rljob.dev/job=stays", "--timeout=300s"])
        .unwrap();
    run.log("the job was deleted while it ran, and no pod is left");
}

/// Kills a learner and stops another: the rule of pods.yaml applies, so that neither is counted.
fn learners_fail_by_a_rule(run: &Run<'_>) {
    for (signal, reason) in [(Signal::KILL, "LearnerKilled"), (Signal::STOP, "LearnerHung")] {
        kill_process(newest_process(cluster(), "rljob-learner --"), signal).unwrap();
        let failure = run.wait_for_failure(reason);
        let message = failure["message"].as_str().unwrap_or_default();
        assert!(message.contains("failurePolicy.rules[0]"), "{failure}");
        run.wait_for_progress();
    }
}

/// Partitions the trainer pods from each other only: the learners run, and no collective completes.
fn learners_wait_for_each_other(run: &Run<'_>) {
    let kubectl = &run.namespace.kubectl;
    let hang_timeout = |seconds: u32| {
        kubectl
            .run(&[
                "patch",
                "rljob/stays",
                "--type=merge",
                &format!(
                    "--patch={}",
                    json!({"spec": {"failurePolicy": {"hangTimeoutSeconds": seconds}}})
                ),
            ])
            .unwrap()
    };
    hang_timeout(10);
    let addresses = ["stays-trainer-0", "stays-trainer-1"]
        .map(|pod| kubectl.run(&["get", "pod", pod, "--output=jsonpath={.status.podIP}"]).unwrap());
    let pid = newest_process(cluster(), "rljob-learner --");
    // One of the addresses is the pod's own.
    let partitions =
        addresses.map(|address| Partition::between(pid, address.parse().unwrap()).unwrap());
    let reported = || {
        run.status()["lastFailure"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("no learner made progress for 10 s"))
    };
    wait_until("learners that wait for each other", LIMIT, || Ok(reported())).unwrap();
    run.log("learners that wait for each other");
    drop(partitions);
    hang_timeout(1800);
    run.wait_for_progress();
}

/// With a hung container runtime, kubelet cannot terminate the pod within its grace period.
fn lose_a_pod_with_a_hung_runtime(cluster: &Cluster, run: &Run<'_>) {
    let kubectl = &run.namespace.kubectl;
    let node = kubectl
        .run(&["get", "pod/stays-inference-0", "--output=jsonpath={.spec.nodeName}"])
        .unwrap();
    let runtime = cluster.own_process(&format!("/{node}/containerd.toml")).unwrap();
    kill_process(runtime, Signal::STOP).unwrap();
    kubectl.run(&["delete", "pod/stays-inference-0", "--grace-period=2", "--wait=false"]).unwrap();
    run.wait_for_incident("PodLost", "stays-inference-0");
    resume(runtime);
    run.wait_for_all_ready();
    run.wait_for_progress();
}

/// A terminating trainer group writes a checkpoint outside the checkpoint interval.
fn evict_between_checkpoints(run: &Run<'_>) {
    let between = |step: u64| !step.is_multiple_of(EVERY_STEPS);
    let newest = || run.status()["checkpoint"]["step"].as_u64();
    let far_from_the_next = || {
        (1..EVERY_STEPS / 2).contains(&(steps_done(&run.directory) % EVERY_STEPS))
            && newest().is_some_and(|step| !between(step))
    };
    wait_until("a step between two checkpoints", LIMIT, || Ok(far_from_the_next())).unwrap();
    evict(run.namespace, "stays-trainer-0");
    wait_until(
        "a checkpoint of the terminating group",
        LIMIT,
        || Ok(newest().is_some_and(between)),
    )
    .unwrap();
    run.wait_for_incident("Evicted", "stays-trainer-0");
}

/// A new engine receives weights, which opens its readiness gate; a removed engine does not affect
/// the run.
fn scale_up_and_down(run: &Run<'_>) {
    let kubectl = &run.namespace.kubectl;
    kubectl.run(&["scale", "rljob/stays", "--replicas=3"]).unwrap();
    kubectl.run(&["wait", "--for=create", "pod/stays-inference-2", "--timeout=60s"]).unwrap();
    kubectl
        .run(&["wait", "--for=condition=Ready", "pod/stays-inference-2", "--timeout=120s"])
        .unwrap();
    run.log("a third engine has joined");
    kubectl.run(&["scale", "rljob/stays", "--replicas=2"]).unwrap();
    kubectl.run(&["wait", "--for=delete", "pod/stays-inference-2", "--timeout=120s"]).unwrap();
    run.wait_for_progress();
}

/// Waits until every engine holds weights and kubelet reports the pods as ready.
fn gates_are_open(namespace: &Namespace) {
    let selector = "--selector=rljob.dev/role=inference";
    namespace
        .kubectl
        .run(&[
            "wait",
            "--for=condition=rljob.dev/weights-synced",
            "--for=condition=Ready",
            "pods",
            selector,
            "--timeout=120s",
        ])
        .unwrap();
}
