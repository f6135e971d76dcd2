//! Faults of nodes, their kubelets and container runtimes.

use std::time::Duration;

use anyhow::{Result, ensure};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::control_plane::frozen;
use super::fault::Fault;
use crate::chaos::testbed::{Testbed, random_node, short};
use crate::process::wait_until;
use crate::procfs::resume;

/// Time limit of the replacement of a lost node's pods: Kubernetes marks the node as unreachable
/// after 20 s, and evicts its pods after another 5 s.
const LOST_NODE: Duration = Duration::from_secs(150);

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("node", "stopped", node_stopped).disturbing(),
    Fault::new("node", "lost", node_lost).disturbing(),
    Fault::new("node", "without kubelet", |testbed, random| {
        frozen(testbed, &format!("--hostname-override={}", random_node(random)), random)
    })
    .disturbing(),
    Fault::new("node", "without runtime", |testbed, random| {
        frozen(testbed, &format!("/{}/containerd.toml", random_node(random)), random)
    })
    .disturbing(),
    Fault::new("node", "drained", node_drained).disturbing(),
];

/// The kubelet and all processes of the pods of a node.
fn processes(testbed: &Testbed, node: &str) -> Result<Vec<Pid>> {
    let mut pids: Vec<Pid> =
        testbed.cluster.pod_processes(node).into_iter().map(|process| process.pid).collect();
    pids.push(testbed.kubelet(node)?);
    Ok(pids)
}

fn pods_of(testbed: &Testbed, node: &str) -> Result<Vec<String>> {
    let path = testbed.path("api/v1", &format!("pods?fieldSelector=spec.nodeName={node}"));
    let list = testbed.api.get(&path)?;
    let pods = list["items"].as_array().into_iter().flatten();
    let name = |pod: &Value| pod["metadata"]["name"].as_str().map(str::to_owned);
    Ok(pods.filter_map(name).collect())
}

/// Stops the node's kubelet and all processes of its pods, like a virtual machine during live
/// migration.
fn node_stopped(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    Testbed::stopped(&processes(testbed, &random_node(random))?, short(random))
}

/// Stops a node until its pods are replaced on the other node, then resumes it with the processes
/// of the old pods.
fn node_lost(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let node = random_node(random);
    ensure!(!pods_of(testbed, &node)?.is_empty(), "no pod is on {node}");
    let pids = processes(testbed, &node)?;
    for pid in &pids {
        // Some processes exit while they are listed.
        let _ = kill_process(*pid, Signal::STOP);
    }
    // If the pods are not replaced in time, the node resumes with them.
    let _ = wait_until("the node's pods to be replaced", LOST_NODE, || {
        Ok(pods_of(testbed, &node)?.is_empty())
    });
    pids.into_iter().for_each(resume);
    Ok(())
}

/// Cordons a node and evicts the job's pods, as `kubectl drain` does.
fn node_drained(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let node = random_node(random);
    testbed.cordon(&node, true)?;
    let evicted = pods_of(testbed, &node)
        .map(|pods| pods.iter().filter(|pod| testbed.evict(pod).is_ok()).count());
    std::thread::sleep(short(random));
    // The API server may be unavailable due to another fault.
    wait_until("the node to be schedulable", Duration::from_secs(60), || {
        testbed.cordon(&node, false).map(|()| true)
    })?;
    ensure!(evicted? > 0, "no pod was evicted");
    Ok(())
}
