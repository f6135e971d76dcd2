//! Table of faults. A fault is an entry in [`FAULTS`] and at most one function below; see the
//! module documentation of [`super`].

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::testbed::{COORDINATOR, LEARNER, OPERATOR, SUPERVISOR, SYSTEM, Testbed, between, one};
use crate::partition::Partition;
use crate::process::wait_until;
use crate::procfs::resume;

/// An injectable fault.
pub struct Fault {
    /// Faulted component.
    pub target: &'static str,
    /// Kind of fault.
    pub name: &'static str,
    /// Whether the fault may increment the job's restart count: failures of learners and faults
    /// that look like one. All others must not.
    pub may_count_restart: bool,
    /// Blocks until the fault is reverted. Errors if there is no target.
    pub inject: Inject,
}

/// Injects a fault and reverts it.
pub type Inject = fn(&Testbed, &mut ChaCha8Rng) -> Result<()>;

impl Fault {
    const fn new(target: &'static str, name: &'static str, inject: Inject) -> Self {
        Self { target, name, may_count_restart: false, inject }
    }

    const fn counted(self) -> Self {
        Self { may_count_restart: true, ..self }
    }
}

/// All faults, drawn with equal probability.
pub const FAULTS: &[Fault] = &[
    Fault::new("engine", "killed", |testbed, random| {
        killed(testbed.random_process(testbed.engine.command(), random)?)
    }),
    Fault::new("engine", "stopped", |testbed, random| {
        stopped(testbed, testbed.engine.command(), random)
    }),
    Fault::new("engine", "cut off", |testbed, random| {
        cut_off(testbed.random_process(testbed.engine.command(), random)?, short(random))
    }),
    Fault::new("engine", "hung", |testbed, random| hung(testbed, testbed.engine.command(), random)),
    Fault::new("engine pod", "deleted", |testbed, random| deleted(testbed, "inference", 5, random)),
    Fault::new("engine pod", "force-deleted", |testbed, random| {
        deleted(testbed, "inference", 0, random)
    }),
    Fault::new("engine pod", "evicted", |testbed, random| evicted(testbed, "inference", random)),
    Fault::new("coordinator", "killed", |testbed, random| {
        killed(testbed.random_process(COORDINATOR, random)?)
    }),
    Fault::new("coordinator", "stopped", |testbed, random| stopped(testbed, COORDINATOR, random)),
    Fault::new("coordinator", "cut off", |testbed, random| {
        cut_off(testbed.random_process(COORDINATOR, random)?, short(random))
    }),
    Fault::new("coordinator", "hung", |testbed, random| hung(testbed, COORDINATOR, random)),
    Fault::new("coordinator pod", "deleted", |testbed, random| {
        deleted(testbed, "coordinator", 5, random)
    }),
    Fault::new("coordinator pod", "force-deleted", |testbed, random| {
        deleted(testbed, "coordinator", 0, random)
    }),
    Fault::new("coordinator pod", "evicted", |testbed, random| {
        evicted(testbed, "coordinator", random)
    }),
    Fault::new("learner", "killed", |testbed, random| {
        killed(testbed.random_process(LEARNER, random)?)
    })
    .counted(),
    Fault::new("learner", "stopped", |testbed, random| stopped(testbed, LEARNER, random)),
    Fault::new("learner", "hung", |testbed, random| hung(testbed, LEARNER, random)).counted(),
    Fault::new("trainer pod", "killed", |testbed, random| {
        killed(testbed.random_process(SUPERVISOR, random)?)
    }),
    Fault::new("trainer pod", "stopped", |testbed, random| stopped(testbed, SUPERVISOR, random)),
    Fault::new("trainer pod", "cut off", |testbed, random| {
        cut_off(testbed.random_process(SUPERVISOR, random)?, short(random))
    }),
    Fault::new("trainer pod", "cut off from its peers", cut_off_from_peers),
    Fault::new("trainer pod", "hung", |testbed, random| hung(testbed, SUPERVISOR, random)),
    Fault::new("trainer pod", "deleted", |testbed, random| deleted(testbed, "trainer", 5, random)),
    Fault::new("trainer pod", "force-deleted", |testbed, random| {
        deleted(testbed, "trainer", 0, random)
    }),
    Fault::new("trainer pod", "evicted", |testbed, random| evicted(testbed, "trainer", random)),
    Fault::new("node", "stopped", node_stopped),
    Fault::new("node", "lost", node_lost),
    Fault::new("node", "without kubelet", |testbed, random| {
        frozen(testbed, &format!("--hostname-override={}", node(random)), random)
    }),
    Fault::new("node", "without runtime", |testbed, random| {
        frozen(testbed, &format!("/{}/containerd.toml", node(random)), random)
    }),
    Fault::new("node", "drained", node_drained),
    Fault::new("operator", "killed", |testbed, random| {
        killed(testbed.random_process(OPERATOR, random)?)
    }),
    Fault::new("operator", "stopped", |testbed, random| stopped(testbed, OPERATOR, random)),
    Fault::new("operator", "cut off", |testbed, random| {
        cut_off(testbed.random_process(OPERATOR, random)?, short(random))
    }),
    Fault::new("operator pod", "deleted", operator_deleted),
    Fault::new("API server", "stopped", |testbed, random| {
        frozen(testbed, "/kube-apiserver", random)
    }),
    Fault::new("API server", "without store", |testbed, random| frozen(testbed, "/etcd", random)),
    Fault::new("DNS", "stopped", |testbed, random| frozen(testbed, "/coredns", random)),
    Fault::new("job", "suspended and resumed", suspended),
    Fault::new("job", "scaled", scaled),
];

/// Targets of these faults, without duplicates, in order.
pub(super) fn targets<'a>(faults: impl IntoIterator<Item = &'a Fault>) -> Vec<&'static str> {
    let mut targets: Vec<_> = faults.into_iter().map(|fault| fault.target).collect();
    targets.dedup();
    targets
}

/// Time limit of the replacement of a lost node's pods: Kubernetes marks the node as unreachable
/// after 50 s.
const LOST_NODE: Duration = Duration::from_secs(150);

/// A duration shorter than most timeouts.
fn short(random: &mut ChaCha8Rng) -> Duration {
    between(random, 0.2, 5.0)
}

fn killed(pid: Pid) -> Result<()> {
    kill_process(pid, Signal::KILL).context("the process has exited")
}

fn stopped(testbed: &Testbed, command: &str, random: &mut ChaCha8Rng) -> Result<()> {
    Testbed::stopped(&[testbed.random_process(command, random)?], short(random))
}

/// Stops a process until it is replaced, for at most a minute.
fn hung(testbed: &Testbed, command: &str, random: &mut ChaCha8Rng) -> Result<()> {
    let pid = testbed.random_process(command, random)?;
    kill_process(pid, Signal::STOP).context("the process has exited")?;
    // Resumes a process that was not replaced.
    let _ = wait_until("a successor", Duration::from_secs(60), || {
        Ok(!testbed.processes(command).contains(&pid))
    });
    resume(pid);
    Ok(())
}

/// Partitions the pod of a process from the network for a while.
fn cut_off(pid: Pid, time: Duration) -> Result<()> {
    let _partition = Partition::of(pid)?;
    std::thread::sleep(time);
    Ok(())
}

/// Partitions a trainer pod from the other trainer pods only.
fn cut_off_from_peers(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let pid = testbed.random_process(SUPERVISOR, random)?;
    let partitions = testbed
        .addresses("trainer")?
        .into_iter()
        .map(|address| Partition::between(pid, address))
        .collect::<Result<Vec<_>>>()?;
    ensure!(!partitions.is_empty(), "no trainer pod has an address");
    std::thread::sleep(short(random));
    Ok(())
}

/// Stops a component of the cluster for a while.
fn frozen(testbed: &Testbed, command: &str, random: &mut ChaCha8Rng) -> Result<()> {
    Testbed::stopped(&[testbed.server(command)?], short(random))
}

fn deleted(
    testbed: &Testbed,
    role: &str,
    grace_seconds: u32,
    random: &mut ChaCha8Rng,
) -> Result<()> {
    let pod = testbed.pod(role, random)?;
    testbed
        .api
        .delete(
            &testbed.path("api/v1", &format!("pods/{pod}")),
            &json!({"gracePeriodSeconds": grace_seconds}),
        )
        .map(drop)
}

fn evicted(testbed: &Testbed, role: &str, random: &mut ChaCha8Rng) -> Result<()> {
    evict(testbed, &testbed.pod(role, random)?)
}

fn node(random: &mut ChaCha8Rng) -> String {
    format!("node-{}", random.random_range(1..=2))
}

/// Stops the node's kubelet and all processes of its pods, like a virtual machine during live
/// migration.
fn node_stopped(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let node = node(random);
    let mut pids: Vec<Pid> =
        testbed.cluster.pod_processes(&node).into_iter().map(|process| process.pid).collect();
    pids.push(testbed.server(&format!("--hostname-override={node}"))?);
    Testbed::stopped(&pids, short(random))
}

/// Stops a node until its pods are replaced on the other node, then resumes it with the processes
/// of the old pods.
fn node_lost(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let node = node(random);
    let on_node = || {
        testbed
            .api
            .get(&testbed.path("api/v1", &format!("pods?fieldSelector=spec.nodeName={node}")))
    };
    ensure!(
        on_node()?["items"].as_array().is_some_and(|pods| !pods.is_empty()),
        "no pod is on {node}"
    );
    let mut pids: Vec<Pid> =
        testbed.cluster.pod_processes(&node).into_iter().map(|process| process.pid).collect();
    pids.push(testbed.server(&format!("--hostname-override={node}"))?);
    for pid in &pids {
        // Some processes exit while they are listed.
        let _ = kill_process(*pid, Signal::STOP);
    }
    // If the pods are not replaced in time, the node resumes with them.
    let _ = wait_until("the node's pods to be replaced", LOST_NODE, || {
        Ok(on_node()?["items"].as_array().is_some_and(Vec::is_empty))
    });
    pids.into_iter().for_each(resume);
    Ok(())
}

/// Cordons a node and evicts the job's pods, as `kubectl drain` does.
fn node_drained(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let node = node(random);
    let cordon = |is: bool| {
        testbed.api.patch(&format!("/api/v1/nodes/{node}"), &json!({"spec": {"unschedulable": is}}))
    };
    cordon(true)?;
    let evicted = testbed
        .api
        .get(&testbed.path("api/v1", &format!("pods?fieldSelector=spec.nodeName={node}")))
        .map(|pods| {
            let names = pods["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned));
            names.filter(|pod| evict(testbed, pod).is_ok()).count()
        });
    std::thread::sleep(short(random));
    // The API server may be unavailable due to another fault.
    wait_until("the node to be schedulable", Duration::from_secs(60), || {
        cordon(false).map(|_| true)
    })?;
    ensure!(evicted? > 0, "no pod was evicted");
    Ok(())
}

/// Fails if a PodDisruptionBudget denies the eviction.
fn evict(testbed: &Testbed, pod: &str) -> Result<()> {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod},
        "deleteOptions": {"gracePeriodSeconds": 5},
    });
    testbed
        .api
        .create(&testbed.path("api/v1", &format!("pods/{pod}/eviction")), &eviction)
        .map(drop)
}

fn operator_deleted(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    let pods = testbed.api.get(&format!("/api/v1/namespaces/{SYSTEM}/pods"))?;
    let names = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    let pod = one(names, random).context("no operator pod exists")?;
    testbed
        .api
        .delete(
            &format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}"),
            &json!({"gracePeriodSeconds": random.random_range(0..5)}),
        )
        .map(drop)
}

/// Suspends the job and resumes it during or after the drain.
fn suspended(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    testbed.patch(&json!({"suspend": true}))?;
    std::thread::sleep(between(random, 0.0, 10.0));
    wait_until("the job to be resumed", Duration::from_secs(60), || {
        testbed.patch(&json!({"suspend": false})).map(|()| true)
    })
}

fn scaled(testbed: &Testbed, random: &mut ChaCha8Rng) -> Result<()> {
    testbed.patch(&json!({"inference": {"replicas": random.random_range(1..=3)}}))
}
