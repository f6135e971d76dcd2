//! The operator's binary with a real API server and controllers and the permissions of
//! install.yaml's service account. There are no nodes: pods are created and deleted but never run;
//! see the end-to-end tests for runs.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rljob_tests::files::{binary, workspace};
use rljob_tests::process::wait_until;
use rljob_tests::sandbox::Program;
use rljob_tests::{Cluster, Kubectl, Namespace, scrape};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{cluster, job, merge};

/// Time limit of API server and controllers on a loaded machine; the garbage collector discovers
/// new kinds every 30 s.
pub(super) const LIMIT: Duration = Duration::from_secs(90);
/// Kinds of a job's children.
pub(super) const KINDS: &str =
    "statefulsets,pods,services,configmaps,secrets,networkpolicies,poddisruptionbudgets";
/// Selector of a job's children.
pub(super) const OWN: &str = "--selector=rljob.dev/job=sample";

/// User name of the operator's service account.
pub(super) const ACCOUNT: &str = "system:serviceaccount:rljob-system:rljob-operator";

/// Next port for an operator's metrics.
static PORT: AtomicU16 = AtomicU16::new(18082);

const ALLOW_HOST_PATH: &str = "--allow-host-path";

/// An operator for one namespace. A failing test prints its log.
pub(super) struct Operator {
    program: Program,
    metrics: SocketAddr,
}

impl Operator {
    pub(super) fn start(namespace: &Namespace, image: &str) -> Self {
        Self::start_at(namespace, image, None, &[])
    }

    /// Starts an operator with additional arguments.
    pub(super) fn start_with(namespace: &Namespace, image: &str, more: &[&str]) -> Self {
        Self::start_at(namespace, image, None, more)
    }

    /// Starts an operator that connects to the API server through the proxy `server`.
    pub(super) fn start_at(
        namespace: &Namespace,
        image: &str,
        server: Option<&str>,
        more: &[&str],
    ) -> Self {
        let more: Vec<&str> = [ALLOW_HOST_PATH].iter().chain(more).copied().collect();
        Self::start_for(namespace, image, server, &more)
    }

    /// Starts an operator that rejects hostPath volumes, which the sample job has.
    pub(super) fn start_strict(namespace: &Namespace, image: &str, server: &str) -> Self {
        Self::start_for(namespace, image, Some(server), &[])
    }

    fn start_for(namespace: &Namespace, image: &str, server: Option<&str>, more: &[&str]) -> Self {
        let name = format!("operator-{}-{}", namespace.name, image.replace([':', '/'], "-"));
        let (config, namespace) = (
            service_account_config(cluster(), &namespace.name, server),
            format!("--namespace={}", namespace.name),
        );
        let arguments: Vec<&str> = [namespace.as_str()].iter().chain(more).copied().collect();
        Self::start_program(cluster(), &name, image, &config, &arguments)
    }

    /// Starts an operator for all namespaces of another cluster.
    pub(super) fn start_in(cluster: &Cluster, image: &str, more: &[&str]) -> Self {
        Self::start_program(
            cluster,
            &format!("operator-{}", image.replace([':', '/'], "-")),
            image,
            &service_account_config(cluster, "all", None),
            &[ALLOW_HOST_PATH].iter().chain(more).copied().collect::<Vec<_>>(),
        )
    }

    fn start_program(
        cluster: &Cluster,
        name: &str,
        image: &str,
        config: &str,
        more: &[&str],
    ) -> Self {
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let program = binary("rljob-operator").unwrap().display().to_string();
        let mut arguments = vec![
            format!("KUBECONFIG={config}"),
            program,
            format!("--image={image}"),
            format!("--listen=0.0.0.0:{port}"),
        ];
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        let program = cluster.start_program(name, "env".as_ref(), &arguments).unwrap();
        Self { program, metrics: SocketAddr::from((cluster.address(), port)) }
    }

    /// Log so far.
    pub(super) fn output(&self) -> String {
        self.program.output()
    }

    /// Sends a signal to the operator.
    pub(super) fn signal(&self, signal: Signal) {
        self.program.signal(signal).unwrap();
    }

    /// Whether `/readyz` has no failed check.
    pub(super) fn is_ready(&self) -> anyhow::Result<bool> {
        Ok(self.readiness()?.0 == 200)
    }

    /// HTTP status and text of `/readyz`.
    pub(super) fn readiness(&self) -> anyhow::Result<(u16, String)> {
        scrape::response(self.metrics, "/readyz")
    }

    /// Number of writes to the API server so far, except those of the lease.
    pub(super) fn writes(&self) -> anyhow::Result<u64> {
        let samples = scrape::metrics(self.metrics)?;
        let verbs = ["create", "update", "patch", "delete"]
            .map(|verb| format!("rljob_api_requests_total{{verb=\"{verb}\"}}"));
        Ok(verbs.iter().filter_map(|name| samples.get(name)).sum::<f64>() as u64)
    }

    /// A metric sample; 0 if it does not exist yet.
    pub(super) fn metric(&self, name: &str) -> anyhow::Result<f64> {
        Ok(scrape::metrics(self.metrics)?.get(name).copied().unwrap_or_default())
    }

    /// Reconciliations and API requests so far.
    pub(super) fn passes_and_requests(&self) -> anyhow::Result<(f64, f64)> {
        let samples = scrape::metrics(self.metrics)?;
        let requests = samples
            .iter()
            .filter(|(name, _)| name.starts_with("rljob_api_requests_total"))
            .map(|(_, count)| count)
            .sum();
        Ok((
            samples.get("rljob_reconcile_duration_seconds_count").copied().unwrap_or_default(),
            requests,
        ))
    }

    pub(super) fn wait_for_log(&self, message: &str) {
        wait_until(&format!("the operator to log {message:?}"), LIMIT, || {
            Ok(self.program.output().contains(message))
        })
        .unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("── log of the operator\n{}", self.program.output());
        }
    }
}

/// Writes a kubeconfig with a token of install.yaml's service account.
fn service_account_config(cluster: &Cluster, name: &str, server: Option<&str>) -> String {
    let system = cluster.kubectl().in_namespace("rljob-system");
    let token = system.run(&["create", "token", "rljob-operator", "--duration=1h"]).unwrap();
    let admin = cluster.kubeconfig();
    let mut config: Value = serde_json::from_str(&fs::read_to_string(admin).unwrap()).unwrap();
    config["users"][0]["user"] = json!({"token": token.trim()});
    if let Some(server) = server {
        config["clusters"][0]["cluster"] = json!({"server": server});
    }
    config["contexts"][0]["context"]["namespace"] = json!("rljob-system");
    let path = admin.with_file_name(format!("operator-{name}.kubeconfig"));
    fs::write(&path, config.to_string()).unwrap();
    path.display().to_string()
}

/// Creates a namespace with the job `sample`, modified by a merge patch.
pub(super) fn namespace_with(prefix: &str, patch: &Value) -> Namespace {
    namespace_in(cluster(), prefix, patch)
}

/// [`namespace_with`] in another cluster.
pub(super) fn namespace_in(cluster: &Cluster, prefix: &str, patch: &Value) -> Namespace {
    let namespace = Namespace::create(cluster, prefix).unwrap();
    let mut job = job();
    merge(&mut job, patch);
    namespace.kubectl.apply(&job.to_string()).unwrap();
    namespace
}

pub(super) fn status(namespace: &Namespace) -> anyhow::Result<Value> {
    Ok(namespace.kubectl.get(&["rljob/sample"])?["status"].take())
}

pub(super) fn wait_for_condition(namespace: &Namespace, condition: &str) {
    let arguments = [
        "wait",
        &format!("--for=condition={condition}"),
        "rljob/sample",
        &format!("--timeout={}s", LIMIT.as_secs()),
    ];
    namespace.kubectl.run(&arguments).unwrap();
}

/// Waits until the job has `count` pods.
pub(super) fn wait_for_pods(namespace: &Namespace, count: usize) {
    let pods = || namespace.kubectl.run(&["get", "pods", OWN, "--output=name"]);
    wait_until(&format!("{count} pods"), LIMIT, || Ok(pods()?.lines().count() == count)).unwrap();
}

/// A field of an object by JSONPath.
pub(super) fn field(namespace: &Namespace, object: &str, path: &str) -> String {
    namespace.kubectl.run(&["get", object, &format!("--output=jsonpath={{{path}}}")]).unwrap()
}

pub(super) fn patch(namespace: &Namespace, spec: &Value) {
    namespace
        .kubectl
        .run(&[
            "patch",
            "rljob/sample",
            "--type=merge",
            "--patch",
            &json!({"spec": spec}).to_string(),
        ])
        .unwrap();
}

/// Installs the service account and its permissions and waits until they are effective. The
/// Deployment's pods stay pending.
pub(super) fn install(kubectl: &Kubectl) -> anyhow::Result<()> {
    kubectl.run(&[
        "apply",
        "--filename",
        &workspace().join("manifests/install.yaml").display().to_string(),
    ])?;
    let can = |verb, resource| {
        kubectl
            .run(&["auth", "can-i", verb, resource, "--namespace=rljob-system", "--as", ACCOUNT])
            .is_ok()
    };
    // One permission of the ClusterRole and one of the Role, which become effective independently.
    wait_until("the operator's permissions to be effective", LIMIT, || {
        Ok(can("list", "rljobs.rljob.dev") && can("create", "leases.coordination.k8s.io"))
    })
}
