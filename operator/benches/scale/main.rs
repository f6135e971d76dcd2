//! A thousand RLJobs on one operator: the time until all of its children exist, its memory, what it writes and asks when nothing changes, and what a job costs in all.
//!
//! The API server and the controllers are real; there is no node: pods are made by the StatefulSet controller and said to run by this program, and all coordinators are
//! played by one HTTP server ([`coordinators`]), each at its pod's own address.
//!
//! ```text
//!  create 1,000 jobs ─▶ 10,000 children ─▶ all Running ─▶ a minute of rest ─▶ every job touched once ─▶ all Succeeded
//!                  scale-children             scale-memory, scale-writes       scale-idle-cpu, -calls      scale-job-writes
//! ```
//! `RLJOB_SCALE_JOBS` sets another number of jobs, for a quick look.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, Resource, ResourceExt};
use rljob_crds::RLJob;
use rljob_tests::bench::{Aim, row};
use rljob_tests::enclosure::Program;
use rljob_tests::{Cluster, files, scrape};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

mod coordinators;

/// A Secret, a ConfigMap, a NetworkPolicy, a PodDisruptionBudget, and a Service and a StatefulSet of each role.
const CHILDREN: usize = 10;
/// Requests of this program at a time.
const REQUESTS: usize = 8;
/// Bound of every wait.
const LIMIT: Duration = Duration::from_secs(400);
/// Time for what is under way.
const SETTLE: Duration = Duration::from_secs(10);
/// How long nothing happens.
const REST: Duration = Duration::from_secs(60);
const PORT: u16 = 18082;

fn job(name: &str) -> RLJob {
    serde_json::from_value(json!({
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name},
        "spec": {
            "model": {"path": "/models/tiny"}, "storage": {"hostPath": {"path": "/srv/runs"}},
            "dataset": {"train": {"path": "/data/train.jsonl", "prompt": "{{question}}", "answer": "answer"}},
            "reward": {"exactMatch": {}}, "algorithm": {"grpo": {}}, "training": {"steps": 3},
        },
    }))
    .unwrap()
}

fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(client: &Client) -> Api<K> {
    Api::default_namespaced(client.clone())
}

/// Counts the children of a kind as they are made.
fn count<K>(client: &Client, seen: &Arc<AtomicUsize>) -> JoinHandle<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let (objects, seen) = (api::<PartialObjectMeta<K>>(client), seen.clone());
    tokio::spawn(async move {
        let mut names = std::collections::BTreeSet::new();
        let mut events = watcher(objects, watcher::Config::default().labels("rljob.dev/job")).applied_objects().boxed();
        while let Some(object) = events.try_next().await.unwrap() {
            if names.insert(object.name_any()) {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
}

/// Plays kubelet: says of every new pod that it runs, at an address of its own.
fn run_pods(client: &Client, seen: &Arc<AtomicUsize>) -> JoinHandle<()> {
    let (pods, seen) = (api::<Pod>(client), seen.clone());
    tokio::spawn(async move {
        let new = watcher(pods.clone(), watcher::Config::default().labels("rljob.dev/job")).applied_objects();
        let new = new.try_filter(|pod| {
            std::future::ready(pod.status.as_ref().is_none_or(|status| status.pod_ip.is_none()) && pod.metadata.deletion_timestamp.is_none())
        });
        new.try_for_each_concurrent(REQUESTS, |pod| {
            let number = seen.fetch_add(1, Ordering::Relaxed);
            let now = jiff::Timestamp::now().to_string();
            let condition = |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": now});
            let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
            let status = json!({"status": {"phase": "Running", "startTime": now, "podIP": format!("10.244.{}.{}", number / 250, number % 250 + 1), "conditions": conditions}});
            let pods = pods.clone();
            async move {
                // A pod that is gone again needs no address.
                let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&status)).await;
                Ok(())
            }
        })
        .await
        .unwrap();
    })
}

/// What the operator says and needs.
struct Operator {
    program: Program,
    metrics: SocketAddr,
}

/// Of the operator, at a time.
struct Reading {
    at: Instant,
    samples: BTreeMap<String, f64>,
    cpu_seconds: f64,
    memory_mib: f64,
}

impl Operator {
    fn start(cluster: &Cluster) -> Self {
        let arguments = [
            format!("KUBECONFIG={}", cluster.kubeconfig().display()),
            env!("CARGO_BIN_EXE_rljob-operator").to_owned(),
            "--image=rljob:bench".to_owned(),
            format!("--listen=0.0.0.0:{PORT}"),
        ];
        let program = cluster.start_program("operator", "env".as_ref(), &arguments).unwrap();
        Self { program, metrics: SocketAddr::from((cluster.address(), PORT)) }
    }

    fn read(&self) -> Reading {
        let process = self.program.process().unwrap();
        let file = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap();
        let stat = file("stat");
        // After the name, in clock ticks of a hundredth of a second: user and system time are fields 14 and 15.
        let ticks: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
        let resident = file("status").lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok()).unwrap();
        let samples = scrape::metrics(self.metrics).unwrap();
        Reading { at: Instant::now(), samples, cpu_seconds: ticks as f64 / 100.0, memory_mib: resident / 1024.0 }
    }
}

impl Reading {
    fn requests(&self, verbs: &[&str]) -> f64 {
        verbs.iter().filter_map(|verb| self.samples.get(&format!("rljob_api_requests_total{{verb=\"{verb}\"}}"))).sum()
    }

    fn writes(&self) -> f64 {
        self.requests(&["create", "update", "patch", "delete"])
    }

    fn state(&self, state: &str) -> f64 {
        self.samples.get(&format!("rljob_jobs{{state=\"{state}\"}}")).copied().unwrap_or_default()
    }

    fn passes(&self) -> f64 {
        self.samples.get("rljob_reconcile_duration_seconds_count").copied().unwrap_or_default()
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {} s", LIMIT.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn each_job<F: Future<Output = ()>>(jobs: usize, act: impl Fn(String) -> F) {
    stream::iter(0..jobs).for_each_concurrent(REQUESTS, |number| act(format!("job-{number:04}"))).await;
}

/// Jobs on an operator, and what is known of them.
struct Bench {
    rljobs: Api<RLJob>,
    operator: Operator,
    jobs: usize,
    start: Instant,
    /// Of the operator, before there was a job.
    before: Reading,
}

impl Bench {
    /// Creates all jobs; until all of their children exist.
    async fn create(&self, children: &AtomicUsize) {
        let (rljobs, jobs, start) = (self.rljobs.clone(), self.jobs, self.start);
        let creation = tokio::spawn(async move {
            each_job(jobs, |name| {
                let rljobs = rljobs.clone();
                async move { drop(rljobs.create(&PostParams::default(), &job(&name)).await.unwrap()) }
            })
            .await;
            start.elapsed().as_secs_f64()
        });
        until("all children", || children.load(Ordering::Relaxed) >= jobs * CHILDREN).await;
        let seconds = start.elapsed().as_secs_f64();
        let (created, made) = (creation.await.unwrap(), self.operator.read());
        let cpu = made.cpu_seconds - self.before.cpu_seconds;
        let figures =
            format!("s: {jobs} jobs created within {created:.1} s, their {} children within {seconds:.1} s, {cpu:.1} s of the operator's CPU", jobs * CHILDREN);
        row("scale-children", &figures, seconds, Aim::AtMost(25.0));
    }

    /// All jobs run and nothing happens. Gives the cores that asking the coordinators takes.
    async fn rest(&self) -> f64 {
        until("every job to run", || self.operator.read().state("Running") >= self.jobs as f64).await;
        let running = self.start.elapsed().as_secs_f64();
        tokio::time::sleep(SETTLE).await;
        let first = self.operator.read();
        tokio::time::sleep(REST).await;
        let second = self.operator.read();
        let cores = (second.cpu_seconds - first.cpu_seconds) / second.at.duration_since(first.at).as_secs_f64();
        let memory = second.memory_mib;
        row("scale-memory", &format!("{memory:.1} MiB resident; every job ran after {running:.1} s"), memory, Aim::AtMost(64.0));
        let figures = format!("in a minute in which nothing changes; asking {} coordinators every second takes {:.1} % of a core", self.jobs, cores * 100.0);
        row("scale-writes", &figures, second.writes() - first.writes(), Aim::AtMost(0.0));
        cores
    }

    /// Every job is touched once, in nothing that matters; `cores` are taken by other things.
    async fn touch(&self, cores: f64) {
        let first = self.operator.read();
        each_job(self.jobs, |name| {
            let rljobs = self.rljobs.clone();
            let patch = json!({"metadata": {"annotations": {"example.com/touched": "once"}}});
            async move { drop(rljobs.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap()) }
        })
        .await;
        until("a pass of each", || self.operator.read().passes() >= first.passes() + self.jobs as f64).await;
        let second = self.operator.read();
        let passes = second.passes() - first.passes();
        let seconds = second.cpu_seconds - first.cpu_seconds - cores * second.at.duration_since(first.at).as_secs_f64();
        let figures = format!("ms of CPU in each of {passes} passes with nothing to do, their events included");
        row("scale-idle-cpu", &figures, seconds.max(0.0) * 1000.0 / passes, Aim::AtMost(1.0));
        let calls = |reading: &Reading| reading.writes() + reading.requests(&["get"]);
        row("scale-idle-calls", "API calls in each of them", (calls(&second) - calls(&first)) / passes, Aim::AtMost(0.0));
    }

    /// All jobs succeed.
    async fn end(&self) {
        until("every job to succeed", || self.operator.read().state("Completed") >= self.jobs as f64).await;
        tokio::time::sleep(SETTLE).await;
        let (done, jobs) = (self.operator.read(), self.jobs as f64);
        let minutes = (self.start.elapsed().as_secs_f64() / 60.0).floor();
        let of = |verbs: &[&str]| (done.requests(verbs) - self.before.requests(verbs)) / jobs;
        let verbs: Vec<String> = ["create", "update", "patch", "delete", "get"].map(|verb| format!("{:.1} {verb}", of(&[verb]))).into();
        let figures = format!(
            "API writes of a job from create to Succeeded ({}); {CHILDREN} children, 1 engine, {minutes} minutes; {:.1} MiB resident at the end",
            verbs.join(", "),
            done.memory_mib
        );
        row("scale-job-writes", &figures, (done.writes() - self.before.writes()) / jobs, Aim::AtMost(CHILDREN as f64 + 9.0 + minutes));
    }
}

async fn measure(client: Client, operator: Operator, end: impl Fn(), jobs: usize) {
    let (children, pods) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let kinds = [count::<Secret>, count::<ConfigMap>, count::<NetworkPolicy>, count::<PodDisruptionBudget>, count::<Service>, count::<StatefulSet>];
    let mut tasks: Vec<AbortOnDropHandle<()>> = kinds.iter().map(|count| AbortOnDropHandle::new(count(&client, &children))).collect();
    tasks.push(AbortOnDropHandle::new(run_pods(&client, &pods)));
    until("the operator", || scrape::get(operator.metrics, "/readyz").is_ok()).await;
    let bench = Bench { rljobs: api(&client), before: operator.read(), operator, jobs, start: Instant::now() };
    bench.create(&children).await;
    let cores = bench.rest().await;
    bench.touch(cores).await;
    end();
    bench.end().await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if std::env::args().nth(1).as_deref() == Some("coordinators") {
        return runtime.block_on(coordinators::serve());
    }
    let jobs = std::env::var("RLJOB_SCALE_JOBS").ok().map_or(1000, |text| text.parse().unwrap());
    let cluster = Cluster::start(0).unwrap();
    let kubectl = cluster.kubectl();
    let crd = files::workspace().join("crds/rljob.yaml");
    kubectl.run(&["apply", "--filename", &crd.display().to_string()]).unwrap();
    kubectl.run(&["wait", "--for=condition=Established", "crd/rljobs.rljob.dev", "--timeout=60s"]).unwrap();
    // There is nothing to schedule on, and a scheduler that tries takes time from everybody.
    cluster.kill_oldest("kube-scheduler").unwrap();
    cluster.run("ip", &["route", "add", "local", "10.244.0.0/16", "dev", "lo"]).unwrap();
    let own = std::env::current_exe().unwrap();
    let _coordinators = cluster.start_program("coordinators", &own, &["coordinators".to_owned()]).unwrap();
    let operator = Operator::start(&cluster);
    let read = Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
    let end = || {
        let request = "exec 3<>/dev/tcp/127.0.0.1/8080; printf 'POST /end HTTP/1.0\\r\\nHost: all\\r\\nContent-Length: 0\\r\\n\\r\\n' >&3; cat <&3";
        cluster.run("bash", &["-c", request]).unwrap();
    };
    runtime.block_on(async {
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        measure(Client::try_from(config).unwrap(), operator, end, jobs).await;
    });
}
