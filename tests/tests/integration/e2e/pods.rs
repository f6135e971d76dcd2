//! Processes that hang, and pods that are lost with their node or drained, in one run: the job goes
//! on, none of it is counted, and its status says what happened.

use std::sync::PoisonError;

use rljob_tests::partition::Partition;
use rljob_tests::proc::resume;
use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Namespace};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{LIMIT, NODES, Run, cluster, steps_done};

const JOB: &str = "stays";
/// Between two checkpoints (pods.yaml).
const EVERY_STEPS: u64 = 20;

impl Run<'_> {
    /// Waits until the last failure has this reason, and gives it.
    fn wait_for_failure(&self, reason: &str) -> Value {
        let failure = || self.status()["lastFailure"].take();
        wait_until(reason, LIMIT, || Ok(failure()["reason"] == reason)).unwrap();
        self.say(reason);
        failure()
    }

    /// Waits until the last failure is a process that was killed, and said to be for this reason.
    fn wait_for_killed(&self, reason: &str) {
        let failure = self.wait_for_failure(reason);
        assert_eq!(failure["exitCode"], 137, "{failure}");
    }

    fn wait_for_all_ready(&self) {
        self.wait_for_condition("TrainerReady");
        self.wait_for_condition("InferenceReady");
    }
}

/// The newest process whose command line contains these words.
fn newest_process(cluster: &Cluster, words: &str) -> Pid {
    let processes = cluster
        .pod_processes("")
        .into_iter()
        .filter(|process| process.command_line.contains(words));
    processes
        .max_by_key(|process| process.started)
        .unwrap_or_else(|| panic!("no process is {words}"))
        .pid
}

fn stop_newest(cluster: &Cluster, words: &str) {
    kill_process(newest_process(cluster, words), Signal::STOP).unwrap();
}

/// Asks the eviction API, as a drain does.
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

/// The names of the job's pods on a node.
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
fn a_job_goes_on_though_a_process_of_every_role_hangs_a_node_is_lost_and_the_other_one_is_drained()
{
    let _alone = NODES.write().unwrap_or_else(PoisonError::into_inner);
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "stays").unwrap();
    let run = Run::start(cluster, &namespace, include_str!("pods.yaml"), JOB);
    run.wait_for_steps(3);
    run.wait_for_all_ready();
    gates_are_open(&namespace);
    scale_up_and_down(&run);
    learners_fail_by_a_rule(&run);
    learners_wait_for_each_other(&run);

    // A stopped process accepts connections and answers nothing. An engine is missed by its
    // coordinator, the other two by their kubelets.
    stop_newest(cluster, "rljob-engine --model-path=/data/model ");
    stop_newest(cluster, "rljob-supervisor --config");
    run.wait_for_killed("SupervisorExited");
    run.wait_for_incident("EngineHung", "stays-inference-");
    run.goes_on();
    run.wait_for_all_ready();
    stop_newest(cluster, "rljob-coordinator --config");
    run.wait_for_killed("CoordinatorExited");
    run.goes_on();
    run.wait_for_all_ready();

    end_a_pod_whose_node_cannot(cluster, &run);

    // The one that has a trainer pod, whatever else; with it may go the operator that leads.
    let lost = namespace
        .kubectl
        .run(&["get", "pod/stays-trainer-0", "--output=jsonpath={.spec.nodeName}"])
        .unwrap();
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
    cluster
        .kubectl()
        .run(&["wait", "--for=condition=Ready", &format!("node/{lost}"), "--timeout=120s"])
        .unwrap();

    evict_between_checkpoints(&run);
    // The operator goes along.
    cluster
        .kubectl()
        .run(&["drain", kept, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s"])
        .unwrap();
    run.say(&format!("{kept} is drained"));
    run.wait_for_all_ready();
    run.goes_on();
    cluster.kubectl().run(&["uncordon", kept]).unwrap();

    let status = run.status();
    assert_eq!(status["restarts"], 0, "nothing of it counts: {status}");
    let seen = run.steps();
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>(), "every step is recorded once");
    namespace.kubectl.run(&["delete", "rljob/stays", "--wait"]).unwrap();
    namespace
        .kubectl
        .run(&["wait", "--for=delete", "pods", "--selector=rljob.dev/job=stays", "--timeout=300s"])
        .unwrap();
    run.say("the job was deleted while it ran, and no pod is left");
}

/// A learner is killed, another one is stopped: neither is counted, for the rule of pods.yaml says
/// so, and is named.
fn learners_fail_by_a_rule(run: &Run<'_>) {
    for (signal, reason) in [(Signal::KILL, "LearnerKilled"), (Signal::STOP, "LearnerHung")] {
        kill_process(newest_process(cluster(), "rljob-learner --"), signal).unwrap();
        let failure = run.wait_for_failure(reason);
        let message = failure["message"].as_str().unwrap_or_default();
        assert!(message.contains("failurePolicy.rules[0]"), "{failure}");
        run.goes_on();
    }
}

/// The pods of the learners do not reach each other, and both reach everybody else: all learners
/// live, and no collective ends.
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
    // One of the two is its own.
    let partitions =
        addresses.map(|address| Partition::between(pid, address.parse().unwrap()).unwrap());
    let told = || {
        run.status()["lastFailure"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("no learner got any further for 10 s"))
    };
    wait_until("learners that wait for each other", LIMIT, || Ok(told())).unwrap();
    run.say("learners that wait for each other");
    drop(partitions);
    hang_timeout(1800);
    run.goes_on();
}

/// Its kubelet lives, and the container runtime answers nothing: nobody ends the pod in its grace
/// period.
fn end_a_pod_whose_node_cannot(cluster: &Cluster, run: &Run<'_>) {
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
    run.goes_on();
}

/// The group of a trainer pod that is told to end writes a checkpoint where none is due.
fn evict_between_checkpoints(run: &Run<'_>) {
    let between = |step: u64| !step.is_multiple_of(EVERY_STEPS);
    let newest = || run.status()["checkpoint"]["step"].as_u64();
    let far_from_the_next = || {
        (1..EVERY_STEPS / 2).contains(&(steps_done(&run.directory) % EVERY_STEPS))
            && newest().is_some_and(|step| !between(step))
    };
    wait_until("a step between two checkpoints", LIMIT, || Ok(far_from_the_next())).unwrap();
    evict(run.namespace, "stays-trainer-0");
    wait_until("a checkpoint of the group that ends", LIMIT, || Ok(newest().is_some_and(between)))
        .unwrap();
    run.wait_for_incident("Evicted", "stays-trainer-0");
}

/// A new engine joins at a sync, which opens its gate; one that leaves takes nothing along.
fn scale_up_and_down(run: &Run<'_>) {
    let kubectl = &run.namespace.kubectl;
    kubectl.run(&["scale", "rljob/stays", "--replicas=3"]).unwrap();
    kubectl.run(&["wait", "--for=create", "pod/stays-inference-2", "--timeout=60s"]).unwrap();
    kubectl
        .run(&["wait", "--for=condition=Ready", "pod/stays-inference-2", "--timeout=120s"])
        .unwrap();
    run.say("a third engine has joined");
    kubectl.run(&["scale", "rljob/stays", "--replicas=2"]).unwrap();
    kubectl.run(&["wait", "--for=delete", "pod/stays-inference-2", "--timeout=120s"]).unwrap();
    run.goes_on();
}

/// Every engine holds weights of the run by now, and kubelet adds that up.
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
