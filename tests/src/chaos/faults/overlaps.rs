//! Processes that resume beside their successors, as after a network partition or a stopped
//! machine.
//!
//! ```text
//!  kubelet    stopped ─────────────────────────────────────────── resumed: kills the old process
//!  old        (stopped) ─────────────────── resumed ── 0.2 to 5 s ──┘
//!  pod        force-deleted ─▶ successor on the other node runs
//! ```

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::fault::Fault;
use crate::chaos::targets::processes_of_pod;
use crate::chaos::testbed::{COORDINATOR, OPERATOR, SUPERVISOR, SYSTEM, Testbed, one, short};
use crate::process::wait_until;
use crate::procfs::resume;

/// Time limit of a successor; shorter than the time after which a node without kubelet is
/// unreachable for the API server.
const SUCCESSOR: Duration = Duration::from_secs(25);
/// Time limit of a new leader: the Lease of a leader that does not renew it ends after 15 s.
const NEW_LEADER: Duration = Duration::from_secs(28);
/// Time in which a coordinator that runs claims the run directory.
const CLAIM: Duration = Duration::from_secs(5);

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("engine pod", "superseded", |testbed, random| {
        superseded(testbed, "inference", testbed.engine.command(), random)
    })
    .disturbing(),
    Fault::new("coordinator pod", "superseded", |testbed, random| {
        superseded(testbed, "coordinator", COORDINATOR, random)
    })
    .disturbing()
    .weighted(4),
    Fault::new("trainer pod", "superseded", |testbed, random| {
        superseded(testbed, "trainer", SUPERVISOR, random)
    })
    .disturbing()
    .weighted(3),
    Fault::new("operator", "superseded", operator_superseded).disturbing().weighted(3),
];

/// A cordoned node with a stopped kubelet and stopped processes of a pod. Dropping the value
/// reverts all of it.
struct Detached<'a> {
    testbed: &'a Testbed,
    node: String,
    kubelet: Pid,
    stopped: Vec<Pid>,
}

impl<'a> Detached<'a> {
    fn start(testbed: &'a Testbed, node: &str) -> Result<Self> {
        let kubelet = testbed.kubelet(node)?;
        testbed.cordon(node, true)?;
        let detached = Self { testbed, node: node.to_owned(), kubelet, stopped: Vec::new() };
        kill_process(kubelet, Signal::STOP).context("the kubelet has exited")?;
        Ok(detached)
    }

    fn stop(&mut self, pids: Vec<Pid>) {
        for pid in &pids {
            // The process may have exited.
            let _ = kill_process(*pid, Signal::STOP);
        }
        self.stopped = pids;
    }

    fn resume(&mut self) {
        self.stopped.drain(..).for_each(resume);
    }
}

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        self.resume();
        resume(self.kubelet);
        // The API server may be unavailable due to another fault.
        let schedulable = wait_until("the node to be schedulable", Duration::from_secs(60), || {
            self.testbed.cordon(&self.node, false).map(|()| true)
        });
        if let Err(error) = schedulable {
            eprintln!("chaos: {error:#}");
        }
    }
}

/// Replaces a pod whose processes continue, or resume once its successor runs.
fn superseded(testbed: &Testbed, role: &str, command: &str, random: &mut ChaCha8Rng) -> Result<()> {
    let pod = one(testbed.pod_objects(role)?, random).context("no pod exists")?;
    let name = pod["metadata"]["name"].as_str().context("the pod has no name")?;
    let uid = pod["metadata"]["uid"].as_str().context("the pod has no UID")?;
    let node = pod["spec"]["nodeName"].as_str().context("the pod has no node")?;
    let old = processes_of_pod(uid, "");
    ensure!(!old.is_empty(), "the pod has no process");
    let epoch = testbed.claimed_epoch();

    let mut detached = Detached::start(testbed, node)?;
    if random.random_bool(0.5) {
        detached.stop(old);
    }
    testbed.delete_pod(name, 0)?;
    wait_until("a successor", SUCCESSOR, || {
        let is_running = |pod: &Value| {
            let successor = pod["metadata"]["uid"].as_str().unwrap_or_default();
            pod["metadata"]["name"] == name
                && successor != uid
                && !processes_of_pod(successor, command).is_empty()
        };
        Ok(testbed.pod_objects(role)?.iter().any(is_running))
    })?;
    if role == "coordinator" && random.random_bool(0.5) {
        // A new coordinator waits for the operator's order, which may be delayed by another fault.
        let _ = wait_until("its claim", CLAIM, || Ok(testbed.claimed_epoch() > epoch));
    }
    detached.resume();
    std::thread::sleep(short(random));
    Ok(())
}

/// Stops the leading operator until the other one leads.
fn operator_superseded(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let leader = || {
        let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases");
        let lease = testbed.api.get(&leases)?["items"][0].take();
        let holder = lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty());
        holder.map(str::to_owned).context("no operator leads")
    };
    let old = leader()?;
    // The identity is the name of the pod and a random number.
    let name = old.rsplit_once('_').map_or(old.as_str(), |(name, _)| name);
    let pod = testbed.api.get(&format!("/api/v1/namespaces/{SYSTEM}/pods/{name}"))?;
    let uid = pod["metadata"]["uid"].as_str().context("the pod has no UID")?;
    let pids = processes_of_pod(uid, OPERATOR);
    ensure!(!pids.is_empty(), "the leader has no process");
    for pid in &pids {
        let _ = kill_process(*pid, Signal::STOP);
    }
    let replaced = wait_until("another leader", NEW_LEADER, || Ok(leader()? != old));
    pids.into_iter().for_each(resume);
    replaced?;
    std::thread::sleep(short(random));
    Ok(())
}
