//! Agents in verifier pods on real nodes, in an image without a program of rljob: OpenAI's client
//! reaches the proxy from pods without keys, and samples whose pod, session or proxy is lost are
//! played again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rljob_crds::names::METRICS_FILE;
use rljob_tests::files::{openai_python, required};
use rljob_tests::process::wait_until;
use rljob_tests::{Namespace, procfs, rootfs};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{LIMIT, NODES, Run, cluster};

/// `maxReplicas` and `training.steps` in agents.yaml.
const MOST: u64 = 3;
const STEPS: usize = 4;
/// `verifiers.image` in agents.yaml.
const IMAGE: &str = "rljob.local/agents:test";

#[test]
fn agents_in_verifier_pods_survive_lost_pods_sessions_and_coordinators() {
    let Some(python) = required(openai_python()) else { return };
    let _nodes = NODES.read();
    let namespace = Namespace::create(cluster(), "agents").unwrap();
    let data = cluster().shared_folder("data-agents").unwrap();
    fs::write(data.join("agents.py"), include_str!("agents.py")).unwrap();
    fs::write(data.join("container.py"), include_str!("container.py")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = rootfs::image_without_programs(IMAGE, folder.path()).unwrap();
    cluster().import(&image).unwrap();
    let run = Run::start(cluster(), &namespace, &manifest(&python), "agents");
    let verifiers = || run.status()["verifiers"].take();
    let all_ready = || Ok(verifiers()["desired"] == MOST && verifiers()["ready"] == MOST);
    wait_until("verifier pods for the agents that wait", LIMIT, all_ready).unwrap();
    run.wait_for_condition("VerifiersReady");
    let pod = ["delete", "pod/agents-verifier-1", "--grace-period=0", "--force"];
    namespace.kubectl.run(&pod).unwrap();
    run.log("a verifier pod is deleted");
    kill(&namespace, "agents-verifier-0", "rljob-reward-runner session");
    run.log("the session of an agent is killed");
    run.wait_for_steps(2);
    kill(&namespace, "agents-coordinator-0", "rljob-coordinator");
    run.log("the proxy is killed");
    run.wait_for_condition("Succeeded");
    let text = fs::read_to_string(run.directory.join(METRICS_FILE)).unwrap();
    for line in text.lines() {
        let step: Value = serde_json::from_str(line).unwrap();
        // See agents.py: 1 for the last completion of two, and 0.25 for the first one.
        assert_eq!(step["reward"], 1.25, "{step}");
        assert_eq!(step["turns"], 2.0, "{step}");
    }
    assert_eq!(text.lines().count(), STEPS);
    assert_eq!(run.status()["restarts"], 0);
}

/// The manifest with the folders of a Python environment.
fn manifest(python: &Path) -> String {
    let prefix = |program: &Path| program.ancestors().nth(2).unwrap().to_owned();
    let base = prefix(&python.canonicalize().unwrap());
    let libraries = PathBuf::from("/usr/lib");
    let folders = BTreeSet::from([libraries, base.join("bin"), base.join("lib"), prefix(python)]);
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for (number, path) in folders.iter().enumerate() {
        let name = format!("python-{number}");
        volumes.push(json!({"name": name, "hostPath": {"path": path}}));
        mounts.push(json!({"name": name, "mountPath": path, "readOnly": true}));
    }
    include_str!("agents.yaml")
        .replace("VOLUMES", &json!(volumes).to_string())
        .replace("MOUNTS", &json!(mounts).to_string())
        .replace("IMAGE", IMAGE)
        .replace("PYTHON", &python.display().to_string())
}

/// Kills a process of a pod, once it runs.
fn kill(namespace: &Namespace, pod: &str, command: &str) {
    let object = namespace.kubectl.get(&["pod", pod]).unwrap();
    let cgroup = format!("/pod{}/", object["metadata"]["uid"].as_str().unwrap());
    let killed = || {
        let found = procfs::in_pods(&cgroup);
        let process = found.iter().find(|process| process.command_line.contains(command));
        Ok(process.is_some_and(|process| kill_process(process.pid, Signal::KILL).is_ok()))
    };
    wait_until(&format!("{command} in {pod}"), LIMIT, killed).unwrap();
}
