//! Testbed of chaos runs: a cluster of two nodes with an operator, and one job at a time.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::{Mutex, RwLock};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::engine::Engine;
use crate::files::workspace;
use crate::namespace::report;
use crate::{Api, Cluster, Kubectl, quickstart, rootfs, sglang};

/// Image of manifests/install.yaml as kubelet resolves it.
pub(super) const IMAGE: &str = concat!("docker.io/library/rljob:", env!("CARGO_PKG_VERSION"));
/// The operator's name for it: while a fault hides the jobs' image, an operator can start.
const OPERATOR_IMAGE: &str =
    concat!("docker.io/library/rljob-operator:", env!("CARGO_PKG_VERSION"));
/// The operator's namespace.
pub(super) const SYSTEM: &str = "rljob-system";
/// Steps of every job (job.yaml).
pub(super) const STEPS: usize = 200;
/// Name of every job.
pub(super) const JOB: &str = "chaos";

/// Substrings of command lines of the job's programs.
pub(super) const COORDINATOR: &str = "/rljob-coordinator";
pub(super) const LEARNER: &str = "/rljob-learner";
pub(super) const SUPERVISOR: &str = "/rljob-supervisor";
pub(super) const OPERATOR: &str = "/rljob-operator";
/// Runners of programs, their sessions and bridges.
pub(super) const RUNNER: &str = "/rljob-reward-runner";

/// A cluster with an operator and the current job.
pub struct Testbed {
    /// Engine of all jobs.
    pub(super) engine: Engine,
    /// Two nodes and the operator.
    pub cluster: Cluster,
    pub(super) api: Api,
    /// Folder of training data and initial models.
    pub data: PathBuf,
    runs: PathBuf,
    namespace: Mutex<String>,
    expected_stalls: AtomicUsize,
    /// Held by faults that are related to others: shared by disturbing ones, alone by checking
    /// ones.
    pub(super) undisturbed: RwLock<()>,
}

/// Adds `--allow-host-path` to the operator: test jobs share folders of the nodes.
pub fn allow_host_path(system: &Kubectl) -> Result<()> {
    let patch = json!([{
        "op": "add",
        "path": "/spec/template/spec/containers/0/command/-",
        "value": "--allow-host-path",
    }]);
    let patch = patch.to_string();
    let operator = "deployment/rljob-operator";
    system.run(&["patch", operator, "--type=json", "--patch", &patch])?;
    system.run(&["rollout", "status", operator, "--timeout=120s"]).map(drop)
}

impl Testbed {
    /// Starts two nodes with the project's image and the operator of manifests/install.yaml.
    pub fn start(engine: Engine) -> Result<Self> {
        let cluster = Cluster::start(2)?;
        let folder = tempfile::tempdir()?;
        cluster.import(&rootfs::image(IMAGE, folder.path())?)?;
        cluster.tag_image(IMAGE, OPERATOR_IMAGE)?;
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
        let image = format!("operator={OPERATOR_IMAGE}");
        system.run(&["set", "image", "deployment/rljob-operator", &image])?;
        allow_host_path(&system)?;
        system
            .run(&["wait", "--for=condition=Available", "deployments", "--all", "--timeout=120s"])
            .with_context(|| report(&system))?;
        let (data, runs) = (cluster.shared_folder("data")?, cluster.shared_folder("runs")?);
        quickstart::generate(&data, 8_000)?;
        fs::write(data.join("verify.py"), include_str!("verify.py"))?;
        fs::write(data.join("agent.py"), include_str!("agent.py"))?;
        Ok(Self {
            engine,
            api: cluster.api()?,
            cluster,
            data,
            runs,
            namespace: Mutex::default(),
            expected_stalls: AtomicUsize::new(0),
            undisturbed: RwLock::new(()),
        })
    }

    /// Creates a namespace and makes it the current one.
    pub fn use_namespace(&self, namespace: &str) -> Result<()> {
        self.api.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}))?;
        namespace.clone_into(&mut self.namespace.lock());
        Ok(())
    }

    pub(super) fn namespace(&self) -> String {
        self.namespace.lock().clone()
    }

    /// Folder of run directories on all nodes.
    pub fn runs(&self) -> &PathBuf {
        &self.runs
    }

    /// Run directory of the current job.
    pub fn run_directory(&self) -> PathBuf {
        self.runs.join(self.namespace()).join(JOB)
    }

    /// API path in the job's namespace.
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

    /// Epoch of the coordinator that owns the run directory; 0 before the first one.
    pub(super) fn claimed_epoch(&self) -> u64 {
        let fence = fs::read(self.run_directory().join("fence.json")).unwrap_or_default();
        let fence: Value = serde_json::from_slice(&fence).unwrap_or_default();
        fence["epoch"].as_u64().unwrap_or_default()
    }

    /// Expects that the job is stalled at times, until the value is dropped.
    pub(super) fn expect_stall(&self) -> ExpectedStall<'_> {
        self.expected_stalls.fetch_add(1, Ordering::SeqCst);
        ExpectedStall(&self.expected_stalls)
    }

    pub(super) fn expects_stall(&self) -> bool {
        self.expected_stalls.load(Ordering::SeqCst) > 0
    }

    /// State of the current job and the operator for failure reports: objects, logs, run directory.
    pub(super) fn state(&self) -> String {
        let kubectl = self.cluster.kubectl();
        let entries = fs::read_dir(self.run_directory()).into_iter().flatten().flatten();
        let directory: Vec<String> =
            entries.map(|entry| entry.path().display().to_string()).collect();
        let [job, system] =
            [&self.namespace(), SYSTEM].map(|namespace| report(&kubectl.in_namespace(namespace)));
        format!("{job}\n── operator\n{system}\n── run directory\n{}", directory.join("\n"))
    }
}

/// A fault that lets the job be stalled at times.
pub(super) struct ExpectedStall<'a>(&'a AtomicUsize);

impl Drop for ExpectedStall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) fn one<T>(mut items: Vec<T>, random: &mut ChaCha8Rng) -> Option<T> {
    (!items.is_empty()).then(|| items.swap_remove(random.random_range(0..items.len())))
}

/// A random duration between two limits in seconds.
pub(super) fn between(random: &mut ChaCha8Rng, from: f64, to: f64) -> Duration {
    Duration::from_secs_f64(random.random_range(from..to))
}

/// A duration shorter than most timeouts.
pub(super) fn short(random: &mut ChaCha8Rng) -> Duration {
    between(random, 0.2, 5.0)
}

pub(super) fn random_node(random: &mut ChaCha8Rng) -> String {
    format!("node-{}", random.random_range(1..=2))
}
