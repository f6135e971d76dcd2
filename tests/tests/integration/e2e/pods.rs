//! Processes that hang, and pods that are lost with their node or drained, in one run: the job goes on, none of it is counted, and its status says what happened.

use std::sync::PoisonError;

use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Namespace};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{LIMIT, NODES, Run, cluster, steps_done};

const JOB: &str = "stays";

impl Run<'_> {
    fn goes_on(&self) {
        self.wait_for_steps(steps_done(&self.directory) + 3);
    }

    /// Waits for an incident of a pod whose name begins like this.
    fn wait_for_incident(&self, reason: &str, pod: &str) {
        let is_it = |incident: &Value| incident["reason"] == reason && incident["pod"].as_str().is_some_and(|name| name.starts_with(pod));
        let told = || self.status()["incidents"].as_array().is_some_and(|incidents| incidents.iter().any(is_it));
        wait_until(&format!("{reason} of {pod}"), LIMIT, || Ok(told())).unwrap();
        self.say(&format!("{reason} of {pod}"));
    }

    /// Waits until the last failure is a process that was killed for this reason.
    fn wait_for_failure(&self, reason: &str) {
        let failure = || self.status()["lastFailure"].take();
        wait_until(reason, LIMIT, || Ok(failure()["reason"] == reason)).unwrap();
        assert_eq!(failure()["exitCode"], 137, "{}", failure());
        self.say(reason);
    }

    fn wait_for_all_ready(&self) {
        self.wait_for_condition("TrainerReady");
        self.wait_for_condition("InferenceReady");
    }
}

/// Stops the newest process whose command line contains these words.
fn stop_newest(cluster: &Cluster, words: &str) {
    let processes = cluster.pod_processes("").into_iter().filter(|process| process.command_line.contains(words));
    let newest = processes.max_by_key(|process| process.pid.as_raw_nonzero()).unwrap_or_else(|| panic!("no process is {words}"));
    kill_process(newest.pid, Signal::STOP).unwrap();
}

/// Asks the eviction API, as a drain does.
fn evict(namespace: &Namespace, pod: &str) {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", namespace.name);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}).to_string();
    namespace.kubectl.run_with_input(&["create", "--raw", &path, "--filename=-"], &eviction).unwrap();
}

/// The names of the job's pods on a node.
fn pods_on(namespace: &Namespace, node: &str) -> Vec<String> {
    let on_it = format!("--field-selector=spec.nodeName={node}");
    let names = namespace.kubectl.run(&["get", "pods", "--selector=rljob.dev/job=stays", &on_it, "--output=jsonpath={.items[*].metadata.name}"]).unwrap();
    names.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_job_goes_on_though_a_process_of_every_role_hangs_a_node_is_lost_and_the_other_one_is_drained() {
    let _alone = NODES.write().unwrap_or_else(PoisonError::into_inner);
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "stays").unwrap();
    let run = Run::start(cluster, &namespace, include_str!("pods.yaml"), JOB);
    run.wait_for_steps(3);
    run.wait_for_all_ready();
    gates_are_open(&namespace);
    scale_up_and_down(&run);

    // A stopped process accepts connections and answers nothing. An engine is missed by its coordinator, the other two by their kubelets.
    stop_newest(cluster, "rljob-engine --model-path=/data/model ");
    stop_newest(cluster, "rljob-supervisor --config");
    run.wait_for_failure("SupervisorExited");
    run.wait_for_incident("EngineHung", "stays-inference-");
    run.goes_on();
    run.wait_for_all_ready();
    stop_newest(cluster, "rljob-coordinator --config");
    run.wait_for_failure("CoordinatorExited");
    run.goes_on();
    run.wait_for_all_ready();

    // The one that has a trainer pod, whatever else; with it may go the operator that leads.
    let lost = namespace.kubectl.run(&["get", "pod/stays-trainer-0", "--output=jsonpath={.spec.nodeName}"]).unwrap();
    let kept = if lost == "node-1" { "node-2" } else { "node-1" };
    let gone = pods_on(&namespace, &lost);
    let stopped = cluster.stop_node(&lost).unwrap();
    run.say(&format!("{lost} is gone, with {gone:?}"));
    for pod in gone {
        run.wait_for_incident("PodLost", &pod);
    }
    run.wait_for_all_ready();
    run.goes_on();
    drop(stopped);
    cluster.kubectl().run(&["wait", "--for=condition=Ready", &format!("node/{lost}"), "--timeout=120s"]).unwrap();

    evict(&namespace, "stays-trainer-0");
    run.wait_for_incident("Evicted", "stays-trainer-0");
    // The operator goes along.
    cluster.kubectl().run(&["drain", kept, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s"]).unwrap();
    run.say(&format!("{kept} is drained"));
    run.wait_for_all_ready();
    run.goes_on();
    cluster.kubectl().run(&["uncordon", kept]).unwrap();

    let status = run.status();
    assert_eq!(status["restarts"], 0, "nothing of it counts: {status}");
    let seen = run.steps();
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>(), "every step is recorded once");
    namespace.kubectl.run(&["delete", "rljob/stays", "--wait"]).unwrap();
    namespace.kubectl.run(&["wait", "--for=delete", "pods", "--selector=rljob.dev/job=stays", "--timeout=300s"]).unwrap();
    run.say("the job was deleted while it ran, and no pod is left");
}

/// A new engine joins at a sync, which opens its gate; one that leaves takes nothing along.
fn scale_up_and_down(run: &Run<'_>) {
    let kubectl = &run.namespace.kubectl;
    kubectl.run(&["scale", "rljob/stays", "--replicas=3"]).unwrap();
    kubectl.run(&["wait", "--for=create", "pod/stays-inference-2", "--timeout=60s"]).unwrap();
    kubectl.run(&["wait", "--for=condition=Ready", "pod/stays-inference-2", "--timeout=120s"]).unwrap();
    run.say("a third engine has joined");
    kubectl.run(&["scale", "rljob/stays", "--replicas=2"]).unwrap();
    kubectl.run(&["wait", "--for=delete", "pod/stays-inference-2", "--timeout=120s"]).unwrap();
    run.goes_on();
}

/// Every engine holds weights of the run by now, and kubelet adds that up.
fn gates_are_open(namespace: &Namespace) {
    let selector = "--selector=rljob.dev/role=inference";
    namespace.kubectl.run(&["wait", "--for=condition=rljob.dev/weights-synced", "--for=condition=Ready", "pods", selector, "--timeout=120s"]).unwrap();
}
