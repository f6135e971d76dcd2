//! What faults strike: the processes and pods of one job at a time on a cluster of two nodes, and
//! the operator and the servers around it.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::engine::Engine;
use crate::files::workspace;
use crate::namespace::report;
use crate::process::run;
use crate::{Api, Cluster, proc, rootfs, sglang};

/// The image of manifests/install.yaml, as kubelet asks for it.
const IMAGE: &str = "docker.io/library/rljob:latest";
/// The operator's namespace.
pub(super) const SYSTEM: &str = "rljob-system";
/// Name of every job.
pub(super) const JOB: &str = "chaos";

/// Programs of a job, as command lines show them.
pub(super) const COORDINATOR: &str = "/rljob-coordinator";
pub(super) const LEARNER: &str = "/rljob-learner";
pub(super) const SUPERVISOR: &str = "/rljob-supervisor";
pub(super) const OPERATOR: &str = "/rljob-operator";

/// A cluster with an operator, and the job that is struck.
pub struct Scene {
    /// Of every job.
    pub(super) engine: Engine,
    /// Two nodes and the operator.
    pub cluster: Cluster,
    pub(super) api: Api,
    /// Data of the jobs, and models to start from.
    pub data: PathBuf,
    runs: PathBuf,
    namespace: Mutex<String>,
}

impl Scene {
    /// Two nodes with the project's image, and the operator of manifests/install.yaml.
    pub fn set(engine: Engine) -> Result<Self> {
        let cluster = Cluster::start(2)?;
        let folder = tempfile::tempdir()?;
        cluster.import(&rootfs::image(IMAGE, folder.path())?)?;
        if let Engine::SGLang { environment } = &engine {
            cluster.import(&sglang::image(environment, folder.path())?)?;
        }
        let kubectl = cluster.kubectl();
        kubectl.run(&[
            "apply",
            "--filename",
            &workspace().join("manifests/install.yaml").display().to_string(),
        ])?;
        let system = kubectl.in_namespace(SYSTEM);
        system
            .run(&["wait", "--for=condition=Available", "deployments", "--all", "--timeout=120s"])
            .with_context(|| report(&system))?;
        let (data, runs) = (cluster.shared_folder("data")?, cluster.shared_folder("runs")?);
        run(Command::new("python3")
            .arg(workspace().join("manifests/samples/quickstart/make_data.py"))
            .arg(&data))?;
        Ok(Self { engine, api: cluster.api()?, cluster, data, runs, namespace: Mutex::default() })
    }

    /// Turns to the job of another namespace, which is made.
    pub fn turn_to(&self, namespace: &str) -> Result<()> {
        self.api.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}))?;
        namespace.clone_into(
            &mut self.namespace.lock().unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        Ok(())
    }

    pub(super) fn namespace(&self) -> String {
        self.namespace.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Where the nodes keep run directories.
    pub fn runs(&self) -> &PathBuf {
        &self.runs
    }

    /// That of the job.
    pub fn run_directory(&self) -> PathBuf {
        self.runs.join(self.namespace()).join(JOB)
    }

    /// A path in the job's namespace.
    pub(super) fn path(&self, group: &str, rest: &str) -> String {
        format!("/{group}/namespaces/{}/{rest}", self.namespace())
    }

    pub(super) fn job_path(&self) -> String {
        self.path("apis/rljob.dev/v1alpha1", &format!("rljobs/{JOB}"))
    }

    pub(super) fn job(&self) -> Result<Value> {
        self.api.get(&self.job_path())
    }

    pub(super) fn patch(&self, spec: &Value) -> Result<()> {
        self.api.patch(&self.job_path(), &json!({"spec": spec})).map(drop)
    }

    /// Names of the job's pods of a role.
    pub(super) fn pods(&self, role: &str) -> Result<Vec<String>> {
        self.of_pods(role, "/metadata/name")
    }

    /// Their addresses, of those that have one.
    pub(super) fn addresses(&self, role: &str) -> Result<Vec<IpAddr>> {
        Ok(self
            .of_pods(role, "/status/podIP")?
            .iter()
            .filter_map(|address| address.parse().ok())
            .collect())
    }

    fn of_pods(&self, role: &str, field: &str) -> Result<Vec<String>> {
        let list = self
            .api
            .get(&self.path("api/v1", &format!("pods?labelSelector=rljob.dev/role={role}")))?;
        Ok(list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pod| pod.pointer(field)?.as_str().map(str::to_owned))
            .collect())
    }

    /// One of the job's pods of a role.
    pub(super) fn pod(&self, role: &str, random: &mut ChaCha8Rng) -> Result<String> {
        one(self.pods(role)?, random).with_context(|| format!("there is no {role} pod"))
    }

    /// Processes in pods whose command line contains these words.
    pub fn processes(&self, words: &str) -> Vec<Pid> {
        self.cluster
            .pod_processes("")
            .into_iter()
            .filter(|process| process.command_line.contains(words))
            .map(|process| process.pid)
            .collect()
    }

    /// One of them.
    pub(super) fn one_of(&self, words: &str, random: &mut ChaCha8Rng) -> Result<Pid> {
        one(self.processes(words), random).with_context(|| format!("no process is {words}"))
    }

    /// A program of the cluster itself, by words of its command line.
    pub(super) fn server(&self, words: &str) -> Result<Pid> {
        self.cluster.own_process(words)
    }

    /// Stops processes for a while.
    pub(super) fn stopped(pids: &[Pid], time: Duration) -> Result<()> {
        let stopped = pids.iter().filter(|pid| kill_process(**pid, Signal::STOP).is_ok()).count();
        ensure!(stopped > 0, "nothing was there to be stopped");
        std::thread::sleep(time);
        pids.iter().copied().for_each(proc::resume);
        Ok(())
    }

    /// Everything that a person needs to see why something did not hold.
    pub(super) fn state(&self) -> String {
        let kubectl = self.cluster.kubectl();
        let entries = fs::read_dir(self.run_directory()).into_iter().flatten().flatten();
        let directory: Vec<String> =
            entries.map(|entry| entry.path().display().to_string()).collect();
        let [job, system] =
            [&self.namespace(), SYSTEM].map(|namespace| report(&kubectl.in_namespace(namespace)));
        format!("{job}\n── operator\n{system}\n── run directory\n{}", directory.join("\n"))
    }

    /// Pods' processes that belong to no operator.
    pub(super) fn leftovers(&self) -> BTreeSet<String> {
        let own = [self.engine.words(), COORDINATOR, LEARNER, SUPERVISOR];
        let all = self.cluster.pod_processes("").into_iter().map(|process| process.command_line);
        all.filter(|line| own.iter().any(|words| line.contains(words))).collect()
    }
}

pub(super) fn one<T>(mut items: Vec<T>, random: &mut ChaCha8Rng) -> Option<T> {
    (!items.is_empty()).then(|| items.swap_remove(random.random_range(0..items.len())))
}

/// A time between two, in seconds.
pub(super) fn between(random: &mut ChaCha8Rng, from: f64, to: f64) -> Duration {
    Duration::from_secs_f64(random.random_range(from..to))
}
