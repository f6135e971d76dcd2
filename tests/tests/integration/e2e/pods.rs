//! Pods that are hung, lost with their node, and drained, in one run: the job goes on, none of it is counted, and its status says what happened.

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

    /// Waits for an incident of a role's pod, and gives the pod's name.
    fn wait_for_incident(&self, reason: &str, role: &str) -> String {
        let prefix = format!("{JOB}-{role}-");
        let find = || {
            let status = self.status();
            let of_role = |incident: &&Value| incident["reason"] == reason && incident["pod"].as_str().is_some_and(|pod| pod.starts_with(&prefix));
            status["incidents"].as_array().into_iter().flatten().find(of_role).map(|incident| incident["pod"].as_str().unwrap_or_default().to_owned())
        };
        let mut found = None;
        wait_until(&format!("{reason} of a pod of {role}"), LIMIT, || {
            found = find();
            Ok(found.is_some())
        })
        .unwrap();
        self.say(&format!("{reason} of {}", found.as_deref().unwrap_or_default()));
        found.unwrap()
    }

    fn wait_for_all_ready(&self) {
        self.wait_for_condition("TrainerReady");
        self.wait_for_condition("InferenceReady");
    }
}

/// The node of a pod, by label in a namespace.
fn node_of(cluster: &Cluster, namespace: &str, selector: &str) -> String {
    let arguments = ["get", "pods", &format!("--selector={selector}"), "--output=jsonpath={.items[0].spec.nodeName}"];
    cluster.kubectl().in_namespace(namespace).run(&arguments).unwrap()
}

#[test]
fn a_job_goes_on_though_an_engine_hangs_a_node_is_lost_and_the_other_one_is_drained() {
    let _alone = NODES.write().unwrap_or_else(PoisonError::into_inner);
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "stays").unwrap();
    let run = Run::start(cluster, &namespace, include_str!("pods.yaml"), JOB);
    run.wait_for_steps(3);
    run.wait_for_all_ready();
    gates_are_open(&namespace);

    // A stopped process accepts connections and answers nothing.
    let hung = cluster.pod_processes("").into_iter().find(|process| process.command_line.contains("rljob-engine --model-path=/data/model ")).unwrap();
    kill_process(hung.pid, Signal::STOP).unwrap();
    run.wait_for_incident("EngineHung", "inference");
    run.goes_on();
    run.wait_for_all_ready();

    let kept = node_of(cluster, "rljob-system", "app.kubernetes.io/name=rljob-operator");
    let lost = if kept == "node-1" { "node-2" } else { "node-1" };
    let stopped = cluster.stop_node(lost).unwrap();
    run.say(&format!("{lost} is gone"));
    run.wait_for_incident("PodLost", "trainer");
    run.wait_for_incident("PodLost", "inference");
    run.wait_for_all_ready();
    run.goes_on();
    drop(stopped);
    cluster.kubectl().run(&["wait", "--for=condition=Ready", &format!("node/{lost}"), "--timeout=120s"]).unwrap();

    cluster.kubectl().run(&["drain", &kept, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s"]).unwrap();
    run.say(&format!("{kept} is drained"));
    run.wait_for_all_ready();
    run.goes_on();
    cluster.kubectl().run(&["uncordon", &kept]).unwrap();
    run.wait_for_incident("Evicted", "trainer");

    let status = run.status();
    assert_eq!(status["restarts"], 0, "nothing of it counts: {status}");
    let seen = run.steps();
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>(), "every step is recorded once");
    namespace.kubectl.run(&["patch", "rljob/stays", "--type=merge", "--patch", &json!({"spec": {"suspend": true}}).to_string()]).unwrap();
    run.wait_for_condition("Suspended");
}

/// Every engine holds weights of the run by now, and kubelet adds that up.
fn gates_are_open(namespace: &Namespace) {
    let selector = "--selector=rljob.dev/role=inference";
    namespace.kubectl.run(&["wait", "--for=condition=rljob.dev/weights-synced", "--for=condition=Ready", "pods", selector, "--timeout=120s"]).unwrap();
}
