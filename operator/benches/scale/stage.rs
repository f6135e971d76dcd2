//! Control plane of one measurement. Its only node has no kubelet: this program binds pods, sets
//! their status and deletes them, and counts objects.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, ResourceExt};
use rljob_tests::Cluster;
use rljob_tests::sandbox::Program;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

/// Concurrent requests of this program.
const REQUESTS: usize = 8;
/// Timeout of every wait.
const LIMIT: Duration = Duration::from_secs(400);
/// Time for operations in progress to finish.
pub const SETTLE: Duration = Duration::from_secs(20);
/// Name of the node.
const NODE: &str = "stage";
/// Interval of node heartbeats; the node controller waits 50 s for one.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Interval of polls.
const LOOK: Duration = Duration::from_millis(250);

/// A control plane and a client of it.
pub struct Stage {
    // Dropped before the control plane.
    _node: AbortOnDropHandle<()>,
    _pods: AbortOnDropHandle<()>,
    pub cluster: Cluster,
    pub client: Client,
}

impl Stage {
    /// Starts the control plane. Pods with this label run immediately after creation.
    pub async fn start(label: &str) -> Self {
        let cluster = Cluster::start(0).unwrap();
        // Without schedulable nodes, a scheduler would only use CPU time.
        cluster.kill_oldest("kube-scheduler").unwrap();
        let read = Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
        let client = Client::try_from(
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap(),
        )
        .unwrap();
        let nodes: Api<Node> = Api::all(client.clone());
        nodes
            .create(
                &PostParams::default(),
                &serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap(),
            )
            .await
            .unwrap();
        let node = AbortOnDropHandle::new(tokio::spawn(keep_ready(nodes)));
        let pods = AbortOnDropHandle::new(tokio::spawn(run_pods(
            Api::default_namespaced(client.clone()),
            label.to_owned(),
        )));
        Self { _node: node, _pods: pods, cluster, client }
    }

    /// Counts objects of these kinds.
    pub async fn count(&self, kinds: &[ApiResource]) -> usize {
        let counts = kinds.iter().map(|kind| async move {
            let objects: Api<DynamicObject> =
                Api::default_namespaced_with(self.client.clone(), kind);
            let first = objects.list_metadata(&ListParams::default().limit(1)).await.unwrap();
            first.items.len()
                + usize::try_from(first.metadata.remaining_item_count.unwrap_or(0)).unwrap()
        });
        futures::future::join_all(counts).await.into_iter().sum()
    }

    /// Waits until `count` objects of these kinds exist; returns the seconds since `start`.
    pub async fn wait_for(
        &self,
        what: &str,
        kinds: &[ApiResource],
        count: usize,
        start: Instant,
    ) -> f64 {
        until(what, async || self.count(kinds).await >= count).await;
        start.elapsed().as_secs_f64()
    }
}

/// Sends node heartbeats in place of kubelet.
async fn keep_ready(nodes: Api<Node>) {
    loop {
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Staged",
            "lastHeartbeatTime": jiff::Timestamp::now().to_string(),
        });
        // The next heartbeat replaces a failed one.
        let _ = nodes
            .patch_status(
                NODE,
                &PatchParams::default(),
                &Patch::Strategic(json!({"status": {"conditions": [ready]}})),
            )
            .await;
        tokio::time::sleep(HEARTBEAT).await;
    }
}

/// Replaces scheduler and kubelet: binds new pods, sets them Running with distinct addresses, and
/// deletes terminating pods.
async fn run_pods(pods: Api<Pod>, label: String) {
    let (seen, pods) = (&AtomicUsize::new(0), &pods);
    let seen_pods = watcher(pods.clone(), watcher::Config::default().labels(&label))
        .default_backoff()
        .applied_objects();
    // Failed watches restart.
    let due = seen_pods.filter_map(async |pod| {
        pod.ok().filter(|pod| {
            pod.status.as_ref().is_none_or(|status| status.pod_ip.is_none())
                || pod.metadata.deletion_timestamp.is_some()
        })
    });
    // The pod may have been deleted.
    let run = async |pod: Pod| {
        let name = pod.name_any();
        if pod.metadata.deletion_timestamp.is_some() {
            let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
            return;
        }
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
        });
        let _: Result<serde_json::Value, _> =
            pods.create_subresource("binding", &name, &PostParams::default(), &binding).await;
        let number = seen.fetch_add(1, Ordering::Relaxed);
        let now = jiff::Timestamp::now().to_string();
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"]
            .map(|type_| json!({"type": type_, "status": "True", "lastTransitionTime": now}));
        let address = format!("10.244.{}.{}", number / 250, number % 250 + 1);
        let status = json!({
            "status": {
                "phase": "Running", "startTime": now, "podIP": address, "conditions": conditions,
            },
        });
        let _ = pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await;
    };
    due.for_each_concurrent(REQUESTS, run).await;
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < LIMIT, "{what}: not within {} s", LIMIT.as_secs());
        tokio::time::sleep(LOOK).await;
    }
}

/// Runs an operation for every job with limited concurrency.
pub async fn each_job<F: Future<Output = ()>>(jobs: usize, act: impl Fn(String) -> F) {
    stream::iter(0..jobs)
        .for_each_concurrent(REQUESTS, |number| act(format!("job-{number:04}")))
        .await;
}

/// CPU time and memory of a process.
#[derive(Clone, Copy)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub memory_mib: f64,
}

impl Usage {
    pub fn of(program: &Program) -> Self {
        let process = program.process().unwrap();
        let file = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap();
        let stat = file("stat");
        // After the name, in clock ticks of a hundredth of a second: user and system time are
        // fields 14 and 15.
        let ticks: u64 = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u64>().unwrap())
            .sum();
        let resident = file("status")
            .lines()
            .find_map(|line| {
                line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok()
            })
            .unwrap();
        Self { cpu_seconds: ticks as f64 / 100.0, memory_mib: resident / 1024.0 }
    }
}
