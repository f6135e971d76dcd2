//! Programs in verifier pods on real nodes: their number follows the calls, a pod and a runner are
//! lost, and every sample gets its verdict. The programs reach neither keys nor the network.

use std::fs;

use rljob_crds::names::METRICS_FILE;
use rljob_tests::process::wait_until;
use rljob_tests::{Namespace, procfs};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{LIMIT, NODES, Run, cluster};

/// Components of the reward, see verify.py.
const PARTS: [&str; 7] = ["key", "account", "run", "environment", "bridge", "network", "works"];
/// `maxReplicas` in verifiers.yaml.
const MOST: u64 = 3;

#[test]
fn verdicts_survive_lost_verifier_pods_whose_programs_reach_neither_keys_nor_network() {
    let _nodes = NODES.read();
    let namespace = Namespace::create(cluster(), "verified").unwrap();
    let data = cluster().shared_folder("data-verified").unwrap();
    fs::write(data.join("verify.py"), include_str!("verify.py")).unwrap();
    fs::write(data.join("container.py"), include_str!("container.py")).unwrap();
    let run = Run::start(cluster(), &namespace, include_str!("verifiers.yaml"), "verified");
    let verifiers = || run.status()["verifiers"].take();
    let all_ready = || Ok(verifiers()["desired"] == MOST && verifiers()["ready"] == MOST);
    wait_until("verifier pods for the calls that wait", LIMIT, all_ready).unwrap();
    run.wait_for_condition("VerifiersReady");
    run.log("all verifier pods are ready");
    let pod = ["delete", "pod/verified-verifier-1", "--grace-period=0", "--force"];
    namespace.kubectl.run(&pod).unwrap();
    let pod = namespace.kubectl.get(&["pod/verified-verifier-0"]).unwrap();
    let pod = format!("/pod{}/", pod["metadata"]["uid"].as_str().unwrap());
    let mut processes = procfs::in_pods(&pod).into_iter();
    let is_runner = |line: &str| line.contains("rljob-reward-runner serve");
    let runner = processes.find(|process| is_runner(&process.command_line)).unwrap();
    kill_process(runner.pid, Signal::KILL).unwrap();
    run.wait_for_condition("Succeeded");
    let text = fs::read_to_string(run.directory.join(METRICS_FILE)).unwrap();
    for line in text.lines() {
        let step: Value = serde_json::from_str(line).unwrap();
        assert_eq!(step["reward/program"], step["reward/correct"], "{step}");
        for part in PARTS {
            assert_eq!(step[format!("reward/program/{part}")], 1.0, "{part}: {step}");
        }
    }
    assert_eq!(text.lines().count(), 20);
    assert_eq!(run.status()["restarts"], 0);
}
