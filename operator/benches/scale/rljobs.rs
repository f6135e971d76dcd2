//! RLJobs on one operator. The StatefulSet controller creates their pods; one HTTP server
//! ([`super::coordinators`]) serves the coordinators, each at the address of its pod.
//!
//! ```text
//!  create all jobs ─▶ all children   scale-children
//!   ─▶ all Running                    scale-memory, scale-writes, scale-scrape
//!   ─▶ a minute idle, touch all jobs  scale-idle-cpu, scale-idle-calls
//!   ─▶ all Succeeded                  scale-job-writes
//! ```

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use rljob_crds::RLJob;
use rljob_tests::bench::{Aim, row};
use rljob_tests::sandbox::Program;
use rljob_tests::{Cluster, files};
use serde_json::json;

use super::Seen;
use super::job::{CHILDREN, job};
use super::operator::{Operator, Reading, cores};
use super::stage::{SETTLE, Stage, Usage, each_job, until};

/// Touches of every job.
const TOUCHES: usize = 5;
/// Length of the idle phase.
const REST: Duration = Duration::from_secs(60);
/// Default image of the operator.
const IMAGE: &str = "rljob:bench";

/// Kinds of the children that the operator creates.
pub fn kinds() -> [ApiResource; 6] {
    [
        ApiResource::erase::<Secret>(&()),
        ApiResource::erase::<ConfigMap>(&()),
        ApiResource::erase::<NetworkPolicy>(&()),
        ApiResource::erase::<PodDisruptionBudget>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<StatefulSet>(&()),
    ]
}

/// A running benchmark.
pub struct Bench {
    /// Serves the coordinators of all jobs.
    _coordinators: Program,
    pub operator: Operator,
    pub stage: Stage,
    rljobs: Api<RLJob>,
    jobs: usize,
    start: Instant,
    /// Reading of the operator before the first job.
    before: Reading,
}

impl Bench {
    pub async fn start(jobs: usize) -> Self {
        let stage = Stage::start("rljob.dev/job").await;
        let (cluster, kubectl) = (&stage.cluster, stage.cluster.kubectl());
        kubectl
            .run(&[
                "apply",
                "--filename",
                &files::workspace().join("crds/rljob.yaml").display().to_string(),
            ])
            .unwrap();
        kubectl.wait_for_definition("rljobs.rljob.dev").unwrap();
        let operator = Operator::start(cluster, IMAGE).await;
        Self::with(stage, operator, jobs)
    }

    /// A benchmark with a running operator.
    pub fn with(stage: Stage, operator: Operator, jobs: usize) -> Self {
        let coordinators = start_coordinators(&stage.cluster);
        let (rljobs, before) = (Api::default_namespaced(stage.client.clone()), operator.read());
        Self {
            _coordinators: coordinators,
            operator,
            stage,
            rljobs,
            jobs,
            start: Instant::now(),
            before,
        }
    }

    /// Creates all jobs. Returns the seconds until all jobs and until all children exist.
    pub async fn create(&self) -> (f64, f64) {
        let (kinds, jobs) = (kinds(), self.jobs);
        let others = self.stage.count(&kinds).await;
        let create = async {
            each_job(jobs, async |name| {
                drop(self.rljobs.create(&PostParams::default(), &job(&name)).await.unwrap());
            })
            .await;
            self.start.elapsed().as_secs_f64()
        };
        let all = self.stage.wait_for("all children", &kinds, others + jobs * CHILDREN, self.start);
        tokio::join!(create, all)
    }

    /// Waits until all jobs run and operations in progress have finished. Returns the seconds until
    /// they ran.
    pub async fn wait_until_running(&self) -> f64 {
        until("every job to run", async || self.operator.read().jobs("Running") >= self.jobs).await;
        let running = self.start.elapsed().as_secs_f64();
        tokio::time::sleep(SETTLE).await;
        running
    }

    fn report_children(&self, (created, seconds): (f64, f64)) {
        let jobs = self.jobs;
        let cpu = self.operator.read().usage.cpu_seconds - self.before.usage.cpu_seconds;
        let figures = format!(
            "s until {jobs} jobs had their {} children, of which {created:.1} s to create the \
                jobs; {cpu:.1} s of the operator's CPU",
            jobs * CHILDREN
        );
        row("scale-children", &figures, seconds, Aim::AtMost(25.0));
    }

    /// Size and duration of a scrape.
    fn report_scrape(&self) {
        let start = Instant::now();
        let text = self.operator.scrape();
        let (seconds, megabytes) = (start.elapsed().as_secs_f64(), text.len() as f64 / 1e6);
        let figures = format!("MB of metrics for {} jobs", self.jobs);
        row("scale-scrape-size", &figures, megabytes, Aim::AtMost(2.0));
        row("scale-scrape-time", "ms for these metrics", seconds * 1000.0, Aim::AtMost(50.0));
    }

    /// Waits until all jobs run, then idles. Returns the cores for polling coordinators, and the
    /// cores in total.
    async fn rest(&self) -> (f64, Usage) {
        let running = self.wait_until_running().await;
        self.report_scrape();
        let first = self.operator.read();
        tokio::time::sleep(REST).await;
        let second = self.operator.read();
        let cores = cores(&first, &second);
        let memory = second.usage.memory_mib;
        row(
            "scale-memory",
            &format!("MiB resident; every job ran after {running:.1} s"),
            memory,
            Aim::AtMost(64.0),
        );
        let figures = format!(
            "writes per idle minute; polling {} coordinators every second \
                takes {:.1} % of a core",
            self.jobs,
            cores * 100.0
        );
        row("scale-writes", &figures, second.writes() - first.writes(), Aim::AtMost(0.0));
        (cores, first.usage)
    }

    /// Touches an irrelevant annotation of every job a few times. `before`: cores that other work
    /// used until now.
    async fn touch(&self, before: f64) {
        let first = self.operator.read();
        for time in 1..=TOUCHES {
            let patch =
                json!({"metadata": {"annotations": {"example.com/touched": time.to_string()}}});
            each_job(self.jobs, async |name| {
                drop(
                    self.rljobs
                        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                        .await
                        .unwrap(),
                );
            })
            .await;
            until("a pass of each", async || {
                self.operator.read().passes() >= first.passes() + (time * self.jobs) as f64
            })
            .await;
        }
        let second = self.operator.read();
        tokio::time::sleep(REST).await;
        // Other work varies more than the measured work, hence the mean of before and after.
        let others = f64::midpoint(before, cores(&second, &self.operator.read()));
        let passes = second.passes() - first.passes();
        let seconds = second.usage.cpu_seconds
            - first.usage.cpu_seconds
            - others * second.at.duration_since(first.at).as_secs_f64();
        let figures =
            format!("ms of CPU per pass without changes, including its events ({passes} passes)");
        row("scale-idle-cpu", &figures, seconds.max(0.0) * 1000.0 / passes, Aim::AtMost(1.0));
        let calls = |reading: &Reading| reading.writes() + reading.requests(&["get"]);
        row(
            "scale-idle-calls",
            "API calls per pass without changes",
            (calls(&second) - calls(&first)) / passes,
            Aim::AtMost(0.0),
        );
    }

    /// All jobs succeed.
    async fn end(&self) {
        let before_end = self.operator.read();
        let request = "exec 3<>/dev/tcp/127.0.0.1/8079; printf 'POST /end HTTP/1.0\\r\\nHost: \
            all\\r\\nContent-Length: 0\\r\\n\\r\\n' >&3; cat <&3";
        self.stage.cluster.run("bash", &["-c", request]).unwrap();
        let minutes = (self.start.elapsed().as_secs_f64() / 60.0).floor();
        until("every job to succeed", async || self.operator.read().jobs("Completed") >= self.jobs)
            .await;
        tokio::time::sleep(SETTLE).await;
        let (done, jobs) = (self.operator.read(), self.jobs as f64);
        let of = |verbs: &[&str]| (done.requests(verbs) - self.before.requests(verbs)) / jobs;
        let verbs: Vec<String> = ["create", "update", "patch", "delete", "get"]
            .map(|verb| format!("{:.1} {verb}", of(&[verb])))
            .into();
        // The outcome is one status write and one event; then pods are deleted and counted again.
        let afterwards = (done.writes() - before_end.writes()) / jobs - 2.0;
        let figures = format!(
            "API writes of a job from create to Succeeded after {minutes} minutes, and \
                {afterwards:.1} afterwards (in all {}); {CHILDREN} children, 1 engine; {:.1} MiB \
                resident",
            verbs.join(", "),
            done.usage.memory_mib
        );
        let writes = (done.writes() - self.before.writes()) / jobs - afterwards;
        row("scale-job-writes", &figures, writes, Aim::AtMost(CHILDREN as f64 + 9.0 + minutes));
    }
}

/// Serves the coordinators of all jobs at the addresses of their pods.
fn start_coordinators(cluster: &Cluster) -> Program {
    cluster.run("ip", &["route", "add", "local", "10.244.0.0/16", "dev", "lo"]).unwrap();
    let own = std::env::current_exe().unwrap().display().to_string();
    let config = format!("KUBECONFIG={}", cluster.kubeconfig().display());
    let arguments = [config, own, "coordinators".to_owned()];
    cluster.start_program("coordinators", "env".as_ref(), &arguments).unwrap()
}

/// Measures a scrape of running jobs only.
pub async fn measure_scrape(jobs: usize) {
    let bench = Bench::start(jobs).await;
    bench.create().await;
    bench.wait_until_running().await;
    bench.report_scrape();
}

/// Measures; returns the values for comparisons.
pub async fn measure(jobs: usize) -> Seen {
    let bench = Bench::start(jobs).await;
    let created = bench.create().await;
    bench.report_children(created);
    let (cores, usage) = bench.rest().await;
    bench.touch(cores).await;
    bench.end().await;
    Seen { seconds: created.1, usage }
}
