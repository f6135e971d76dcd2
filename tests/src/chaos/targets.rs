//! Targets of faults on a [`Testbed`]: pods, processes and nodes.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::testbed::{COORDINATOR, LEARNER, RUNNER, SUPERVISOR, SYSTEM, Testbed, one};
use crate::procfs;

impl Testbed {
    /// The job's pods of a role.
    pub(super) fn pod_objects(&self, role: &str) -> Result<Vec<Value>> {
        self.list(&self.path("api/v1", &format!("pods?labelSelector=rljob.dev/role={role}")))
    }

    fn list(&self, path: &str) -> Result<Vec<Value>> {
        Ok(self.api.get(path)?["items"].as_array().cloned().unwrap_or_default())
    }

    /// Names of the job's pods of a role.
    pub(super) fn pods(&self, role: &str) -> Result<Vec<String>> {
        Ok(texts(&self.pod_objects(role)?, "/metadata/name"))
    }

    /// IP addresses of the job's pods of a role.
    pub(super) fn addresses(&self, role: &str) -> Result<Vec<IpAddr>> {
        Ok(addresses(&self.pod_objects(role)?))
    }

    /// IP addresses of the operators.
    pub(super) fn operator_addresses(&self) -> Result<Vec<IpAddr>> {
        Ok(addresses(&self.list(&format!("/api/v1/namespaces/{SYSTEM}/pods"))?))
    }

    /// A random pod of a role.
    pub(super) fn pod(&self, role: &str, random: &mut ChaCha8Rng) -> Result<String> {
        one(self.pods(role)?, random).with_context(|| format!("no {role} pod exists"))
    }

    pub(super) fn delete_pod(&self, pod: &str, grace_seconds: u32) -> Result<()> {
        let path = self.path("api/v1", &format!("pods/{pod}"));
        self.api.delete(&path, &json!({"gracePeriodSeconds": grace_seconds})).map(drop)
    }

    /// Fails if a PodDisruptionBudget denies the eviction.
    pub(super) fn evict(&self, pod: &str) -> Result<()> {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod},
            "deleteOptions": {"gracePeriodSeconds": 5},
        });
        let path = self.path("api/v1", &format!("pods/{pod}/eviction"));
        self.api.create(&path, &eviction).map(drop)
    }

    /// Marks a node as unschedulable, or as schedulable.
    pub(super) fn cordon(&self, node: &str, is_cordoned: bool) -> Result<()> {
        let patch = json!({"spec": {"unschedulable": is_cordoned}});
        self.api.patch(&format!("/api/v1/nodes/{node}"), &patch).map(drop)
    }

    /// Processes in pods whose command line contains `command`.
    pub fn processes(&self, command: &str) -> Vec<Pid> {
        self.cluster
            .pod_processes("")
            .into_iter()
            .filter(|process| process.command_line.contains(command))
            .map(|process| process.pid)
            .collect()
    }

    /// A random process in pods whose command line contains `command`.
    pub(super) fn random_process(&self, command: &str, random: &mut ChaCha8Rng) -> Result<Pid> {
        one(self.processes(command), random)
            .with_context(|| format!("no process matches {command:?}"))
    }

    /// Resident memory in KiB of the processes in pods whose command line contains `command`.
    pub(super) fn memory(&self, command: &str) -> Vec<(i32, u64)> {
        let resident = |pid: Pid| {
            let pid = pid.as_raw_nonzero().get();
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            Some((pid, line.trim().trim_end_matches(" kB").parse().ok()?))
        };
        self.processes(command).into_iter().filter_map(resident).collect()
    }

    /// PID of a cluster component whose command line contains `command`.
    pub(super) fn server(&self, command: &str) -> Result<Pid> {
        self.cluster.own_process(command)
    }

    /// PID of the kubelet of a node.
    pub(super) fn kubelet(&self, node: &str) -> Result<Pid> {
        self.server(&format!("--hostname-override={node}"))
    }

    /// Stops processes for `time`.
    pub(super) fn stopped(pids: &[Pid], time: Duration) -> Result<()> {
        let stopped = pids.iter().filter(|pid| kill_process(**pid, Signal::STOP).is_ok()).count();
        ensure!(stopped > 0, "no process to stop");
        std::thread::sleep(time);
        pids.iter().copied().for_each(procfs::resume);
        Ok(())
    }

    /// Command lines of the job's processes that are still running.
    pub(super) fn leftovers(&self) -> BTreeSet<String> {
        let own = [self.engine.command(), COORDINATOR, LEARNER, SUPERVISOR, RUNNER];
        let all = self.cluster.pod_processes("").into_iter().map(|process| process.command_line);
        all.filter(|line| own.iter().any(|command| line.contains(command))).collect()
    }
}

/// Processes of the pod with a UID whose command line contains `command`.
pub(super) fn processes_of_pod(uid: &str, command: &str) -> Vec<Pid> {
    procfs::in_pods(&format!("/pod{uid}/"))
        .into_iter()
        .filter(|process| process.command_line.contains(command))
        .map(|process| process.pid)
        .collect()
}

fn texts(objects: &[Value], field: &str) -> Vec<String> {
    let texts = objects.iter().filter_map(|object| object.pointer(field)?.as_str());
    texts.map(str::to_owned).collect()
}

fn addresses(pods: &[Value]) -> Vec<IpAddr> {
    texts(pods, "/status/podIP").iter().filter_map(|address| address.parse().ok()).collect()
}
