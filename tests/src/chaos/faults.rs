//! The table of faults. One is a line here and, at most, a function below; `mod.rs` says how.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::scene::{COORDINATOR, LEARNER, OPERATOR, SUPERVISOR, SYSTEM, Scene, between, one};
use crate::partition::Partition;
use crate::proc::resume;
use crate::process::wait_until;

/// Something that goes wrong.
pub struct Fault {
    /// What it strikes.
    pub part: &'static str,
    /// What happens to it.
    pub name: &'static str,
    /// Whether it may spend a restart of the job: a failure of a learner, or what looks like one.
    /// Everything else must not.
    pub counts: bool,
    /// Does it, and takes it back. An error if there was nothing to strike.
    pub strike: fn(&Scene, &mut ChaCha8Rng) -> Result<()>,
}

/// All of them; each is as likely as another.
pub const FAULTS: &[Fault] = &[
    Fault {
        part: "engine",
        name: "killed",
        counts: false,
        strike: |scene, random| killed(scene.one_of(scene.engine.words(), random)?),
    },
    Fault {
        part: "engine",
        name: "stopped",
        counts: false,
        strike: |scene, random| stopped(scene, scene.engine.words(), random),
    },
    Fault {
        part: "engine",
        name: "cut off",
        counts: false,
        strike: |scene, random| cut_off(scene.one_of(scene.engine.words(), random)?, short(random)),
    },
    Fault {
        part: "engine",
        name: "hung",
        counts: false,
        strike: |scene, random| hung(scene, scene.engine.words(), random),
    },
    Fault {
        part: "engine pod",
        name: "deleted",
        counts: false,
        strike: |scene, random| deleted(scene, "inference", 5, random),
    },
    Fault {
        part: "engine pod",
        name: "force-deleted",
        counts: false,
        strike: |scene, random| deleted(scene, "inference", 0, random),
    },
    Fault {
        part: "engine pod",
        name: "evicted",
        counts: false,
        strike: |scene, random| evicted(scene, "inference", random),
    },
    Fault {
        part: "coordinator",
        name: "killed",
        counts: false,
        strike: |scene, random| killed(scene.one_of(COORDINATOR, random)?),
    },
    Fault {
        part: "coordinator",
        name: "stopped",
        counts: false,
        strike: |scene, random| stopped(scene, COORDINATOR, random),
    },
    Fault {
        part: "coordinator",
        name: "cut off",
        counts: false,
        strike: |scene, random| cut_off(scene.one_of(COORDINATOR, random)?, short(random)),
    },
    Fault {
        part: "coordinator",
        name: "hung",
        counts: false,
        strike: |scene, random| hung(scene, COORDINATOR, random),
    },
    Fault {
        part: "coordinator pod",
        name: "deleted",
        counts: false,
        strike: |scene, random| deleted(scene, "coordinator", 5, random),
    },
    Fault {
        part: "coordinator pod",
        name: "force-deleted",
        counts: false,
        strike: |scene, random| deleted(scene, "coordinator", 0, random),
    },
    Fault {
        part: "coordinator pod",
        name: "evicted",
        counts: false,
        strike: |scene, random| evicted(scene, "coordinator", random),
    },
    Fault {
        part: "learner",
        name: "killed",
        counts: true,
        strike: |scene, random| killed(scene.one_of(LEARNER, random)?),
    },
    Fault {
        part: "learner",
        name: "stopped",
        counts: false,
        strike: |scene, random| stopped(scene, LEARNER, random),
    },
    Fault {
        part: "learner",
        name: "hung",
        counts: true,
        strike: |scene, random| hung(scene, LEARNER, random),
    },
    Fault {
        part: "trainer pod",
        name: "killed",
        counts: false,
        strike: |scene, random| killed(scene.one_of(SUPERVISOR, random)?),
    },
    Fault {
        part: "trainer pod",
        name: "stopped",
        counts: false,
        strike: |scene, random| stopped(scene, SUPERVISOR, random),
    },
    Fault {
        part: "trainer pod",
        name: "cut off",
        counts: false,
        strike: |scene, random| cut_off(scene.one_of(SUPERVISOR, random)?, short(random)),
    },
    Fault {
        part: "trainer pod",
        name: "cut off from its peers",
        counts: false,
        strike: cut_off_from_peers,
    },
    Fault {
        part: "trainer pod",
        name: "hung",
        counts: false,
        strike: |scene, random| hung(scene, SUPERVISOR, random),
    },
    Fault {
        part: "trainer pod",
        name: "deleted",
        counts: false,
        strike: |scene, random| deleted(scene, "trainer", 5, random),
    },
    Fault {
        part: "trainer pod",
        name: "force-deleted",
        counts: false,
        strike: |scene, random| deleted(scene, "trainer", 0, random),
    },
    Fault {
        part: "trainer pod",
        name: "evicted",
        counts: false,
        strike: |scene, random| evicted(scene, "trainer", random),
    },
    Fault { part: "node", name: "stopped", counts: false, strike: node_stopped },
    Fault { part: "node", name: "lost", counts: false, strike: node_lost },
    Fault {
        part: "node",
        name: "without kubelet",
        counts: false,
        strike: |scene, random| {
            frozen(scene, &format!("--hostname-override={}", node(random)), random)
        },
    },
    Fault {
        part: "node",
        name: "without runtime",
        counts: false,
        strike: |scene, random| {
            frozen(scene, &format!("/{}/containerd.toml", node(random)), random)
        },
    },
    Fault { part: "node", name: "drained", counts: false, strike: node_drained },
    Fault {
        part: "operator",
        name: "killed",
        counts: false,
        strike: |scene, random| killed(scene.one_of(OPERATOR, random)?),
    },
    Fault {
        part: "operator",
        name: "stopped",
        counts: false,
        strike: |scene, random| stopped(scene, OPERATOR, random),
    },
    Fault {
        part: "operator",
        name: "cut off",
        counts: false,
        strike: |scene, random| cut_off(scene.one_of(OPERATOR, random)?, short(random)),
    },
    Fault { part: "operator pod", name: "deleted", counts: false, strike: operator_deleted },
    Fault {
        part: "API server",
        name: "stopped",
        counts: false,
        strike: |scene, random| frozen(scene, "/kube-apiserver", random),
    },
    Fault {
        part: "API server",
        name: "without store",
        counts: false,
        strike: |scene, random| frozen(scene, "/etcd", random),
    },
    Fault {
        part: "DNS",
        name: "stopped",
        counts: false,
        strike: |scene, random| frozen(scene, "/coredns", random),
    },
    Fault { part: "job", name: "suspended and resumed", counts: false, strike: suspended },
    Fault { part: "job", name: "scaled", counts: false, strike: scaled },
];

/// The parts of these faults, in their order.
pub(super) fn parts<'a>(faults: impl IntoIterator<Item = &'a Fault>) -> Vec<&'static str> {
    let mut parts: Vec<_> = faults.into_iter().map(|fault| fault.part).collect();
    parts.dedup();
    parts
}

/// Time within which a lost node's pods are elsewhere: Kubernetes notices after 50 s, and the
/// operator has its bound.
const LOST_NODE: Duration = Duration::from_secs(150);

/// A time that most waits outlive.
fn short(random: &mut ChaCha8Rng) -> Duration {
    between(random, 0.2, 5.0)
}

fn killed(pid: Pid) -> Result<()> {
    kill_process(pid, Signal::KILL).context("it is gone")
}

fn stopped(scene: &Scene, words: &str, random: &mut ChaCha8Rng) -> Result<()> {
    Scene::stopped(&[scene.one_of(words, random)?], short(random))
}

/// Stopped until somebody replaces it; one that nobody replaces within a minute goes on.
fn hung(scene: &Scene, words: &str, random: &mut ChaCha8Rng) -> Result<()> {
    let pid = scene.one_of(words, random)?;
    kill_process(pid, Signal::STOP).context("it is gone")?;
    // Whoever is not replaced goes on.
    let _ = wait_until("a successor", Duration::from_secs(60), || {
        Ok(!scene.processes(words).contains(&pid))
    });
    resume(pid);
    Ok(())
}

/// The pod of a process, for a while.
fn cut_off(pid: Pid, time: Duration) -> Result<()> {
    let _partition = Partition::of(pid)?;
    std::thread::sleep(time);
    Ok(())
}

/// Learners that everybody reaches but the learners of other pods.
fn cut_off_from_peers(scene: &Scene, random: &mut ChaCha8Rng) -> Result<()> {
    let pid = scene.one_of(SUPERVISOR, random)?;
    let partitions = scene
        .addresses("trainer")?
        .into_iter()
        .map(|address| Partition::between(pid, address))
        .collect::<Result<Vec<_>>>()?;
    ensure!(!partitions.is_empty(), "no trainer pod has an address");
    std::thread::sleep(short(random));
    Ok(())
}

/// A server of the cluster itself.
fn frozen(scene: &Scene, words: &str, random: &mut ChaCha8Rng) -> Result<()> {
    Scene::stopped(&[scene.server(words)?], short(random))
}

fn deleted(scene: &Scene, role: &str, grace_seconds: u32, random: &mut ChaCha8Rng) -> Result<()> {
    let pod = scene.pod(role, random)?;
    scene
        .api
        .delete(
            &scene.path("api/v1", &format!("pods/{pod}")),
            &json!({"gracePeriodSeconds": grace_seconds}),
        )
        .map(drop)
}

fn evicted(scene: &Scene, role: &str, random: &mut ChaCha8Rng) -> Result<()> {
    evict(scene, &scene.pod(role, random)?)
}

fn node(random: &mut ChaCha8Rng) -> String {
    format!("node-{}", random.random_range(1..=2))
}

/// Its kubelet and every process in its pods, as a virtual machine that is being moved.
fn node_stopped(scene: &Scene, random: &mut ChaCha8Rng) -> Result<()> {
    let node = node(random);
    let mut pids: Vec<Pid> =
        scene.cluster.pod_processes(&node).into_iter().map(|process| process.pid).collect();
    pids.push(scene.server(&format!("--hostname-override={node}"))?);
    Scene::stopped(&pids, short(random))
}

/// A node that nobody hears of until its pods are made anew elsewhere; then it comes back, and with
/// it the processes of the old pods.
fn node_lost(scene: &Scene, random: &mut ChaCha8Rng) -> Result<()> {
    let node = node(random);
    let on_node = || {
        scene.api.get(&scene.path("api/v1", &format!("pods?fieldSelector=spec.nodeName={node}")))
    };
    ensure!(
        on_node()?["items"].as_array().is_some_and(|pods| !pods.is_empty()),
        "no pod is on {node}"
    );
    let mut pids: Vec<Pid> =
        scene.cluster.pod_processes(&node).into_iter().map(|process| process.pid).collect();
    pids.push(scene.server(&format!("--hostname-override={node}"))?);
    for pid in &pids {
        // Some end while they are listed.
        let _ = kill_process(*pid, Signal::STOP);
    }
    // A node whose pods are not made anew comes back with them.
    let _ = wait_until("the node's pods to go", LOST_NODE, || {
        Ok(on_node()?["items"].as_array().is_some_and(Vec::is_empty))
    });
    pids.into_iter().for_each(resume);
    Ok(())
}

/// As `kubectl drain` does: no new pods, and the job's pods there are evicted.
fn node_drained(scene: &Scene, random: &mut ChaCha8Rng) -> Result<()> {
    let node = node(random);
    let cordon = |is: bool| {
        scene.api.patch(&format!("/api/v1/nodes/{node}"), &json!({"spec": {"unschedulable": is}}))
    };
    cordon(true)?;
    let evicted = scene
        .api
        .get(&scene.path("api/v1", &format!("pods?fieldSelector=spec.nodeName={node}")))
        .map(|pods| {
            let names = pods["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned));
            names.filter(|pod| evict(scene, pod).is_ok()).count()
        });
    std::thread::sleep(short(random));
    // The API server may be away just now.
    wait_until("the node to be schedulable", Duration::from_secs(60), || {
        cordon(false).map(|_| true)
    })?;
    ensure!(evicted? > 0, "no pod was evicted");
    Ok(())
}

/// A PodDisruptionBudget may refuse it.
fn evict(scene: &Scene, pod: &str) -> Result<()> {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}, "deleteOptions": {"gracePeriodSeconds": 5}});
    scene.api.create(&scene.path("api/v1", &format!("pods/{pod}/eviction")), &eviction).map(drop)
}

fn operator_deleted(scene: &Scene, random: &mut ChaCha8Rng) -> Result<()> {
    let pods = scene.api.get(&format!("/api/v1/namespaces/{SYSTEM}/pods"))?;
    let names = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    let pod = one(names, random).context("there is no operator")?;
    scene
        .api
        .delete(
            &format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}"),
            &json!({"gracePeriodSeconds": random.random_range(0..5)}),
        )
        .map(drop)
}

/// Resumed at any moment of the drain, or after it.
fn suspended(scene: &Scene, random: &mut ChaCha8Rng) -> Result<()> {
    scene.patch(&json!({"suspend": true}))?;
    std::thread::sleep(between(random, 0.0, 10.0));
    wait_until("the job to be resumed", Duration::from_secs(60), || {
        scene.patch(&json!({"suspend": false})).map(|()| true)
    })
}

fn scaled(scene: &Scene, random: &mut ChaCha8Rng) -> Result<()> {
    scene.patch(&json!({"inference": {"replicas": random.random_range(1..=3)}}))
}
