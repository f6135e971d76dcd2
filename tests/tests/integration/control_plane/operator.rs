//! The operator's binary with a real API server and controllers and the permissions of
//! install.yaml's service account. There are no nodes: pods are created and deleted but never run;
//! see the end-to-end tests for runs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rljob_tests::files::{binary, workspace};
use rljob_tests::process::wait_until;
use rljob_tests::sandbox::Program;
use rljob_tests::{Cluster, Kubectl, Namespace, account, scrape};
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

/// The operator's namespace in install.yaml.
pub(super) const SYSTEM: &str = "rljob-system";
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
        let config = account_config(cluster(), (SYSTEM, "rljob-operator"), &namespace.name, server);
        let first = [format!("--image={image}"), format!("--namespace={}", namespace.name)];
        Self::start_program(cluster(), &name, &config, first.into_iter().chain(owned(more)))
    }

    /// Starts an operator for all namespaces of another cluster.
    pub(super) fn start_in(cluster: &Cluster, image: &str, more: &[&str]) -> Self {
        let name = format!("operator-{}", image.replace([':', '/'], "-"));
        let config = account_config(cluster, (SYSTEM, "rljob-operator"), "all", None);
        let first = [format!("--image={image}"), ALLOW_HOST_PATH.to_owned()];
        Self::start_program(cluster, &name, &config, first.into_iter().chain(owned(more)))
    }

    /// Starts the program of the Deployment in a namespace, with its arguments and service account.
    pub(super) fn start_deployed(cluster: &Cluster, namespace: &str) -> Self {
        let (config, arguments) =
            account::deployed_program(cluster, namespace, "rljob-operator").unwrap();
        let name = format!("deployed-{namespace}");
        Self::start_program(cluster, &name, &config, arguments.into_iter())
    }

    fn start_program(
        cluster: &Cluster,
        name: &str,
        config: &str,
        more: impl Iterator<Item = String>,
    ) -> Self {
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let program = binary("rljob-operator").unwrap().display().to_string();
        let first = [format!("KUBECONFIG={config}"), program, format!("--listen=0.0.0.0:{port}")];
        let arguments: Vec<String> = first.into_iter().chain(more).collect();
        let name = format!("{name}-{port}");
        let program = cluster.start_program(&name, "env".as_ref(), &arguments).unwrap();
        Self { program, metrics: SocketAddr::from((cluster.address(), port)) }
    }

    /// Address of `/metrics`.
    pub(super) fn metrics_address(&self) -> SocketAddr {
        self.metrics
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

fn owned(arguments: &[&str]) -> impl Iterator<Item = String> {
    arguments.iter().map(|argument| (*argument).to_owned())
}

/// Writes a kubeconfig with a token of a service account, given by namespace and name.
pub(super) fn account_config(
    cluster: &Cluster,
    account: (&str, &str),
    file: &str,
    server: Option<&str>,
) -> String {
    account::kubeconfig(cluster, account, file, server).unwrap()
}

/// Creates a namespace with the job `sample`, modified by a merge patch.
pub(super) fn namespace_with(prefix: &str, patch: &Value) -> Namespace {
    namespace_in(cluster(), prefix, patch)
}

/// [`namespace_with`] in another cluster.
pub(super) fn namespace_in(cluster: &Cluster, prefix: &str, patch: &Value) -> Namespace {
    let namespace = Namespace::create(cluster, prefix).unwrap();
    apply_job(&namespace, patch);
    namespace
}

/// Applies the job `sample`, modified by a merge patch.
pub(super) fn apply_job(namespace: &Namespace, patch: &Value) {
    let mut job = job();
    merge(&mut job, patch);
    namespace.kubectl.apply(&job.to_string()).unwrap();
}

pub(super) fn status(namespace: &Namespace) -> anyhow::Result<Value> {
    let path = format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs/sample", namespace.name);
    Ok(namespace.api.get(&path)?["status"].take())
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
    let selector = "labelSelector=rljob.dev/job=sample";
    let path = format!("/api/v1/namespaces/{}/pods?{selector}", namespace.name);
    let pods = || Ok(namespace.api.get(&path)?["items"].as_array().map_or(0, Vec::len));
    wait_until(&format!("{count} pods"), LIMIT, || pods().map(|found| found == count)).unwrap();
}

/// A field of an existing object by JSONPath.
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
    wait_for_permissions(kubectl, SYSTEM, SYSTEM)
}

/// Waits until the operator's account in a namespace may list the RLJobs of another, and create its
/// Lease: one permission of each of its roles, which become effective independently.
pub(super) fn wait_for_permissions(
    kubectl: &Kubectl,
    namespace: &str,
    jobs: &str,
) -> anyhow::Result<()> {
    let account = format!("--as=system:serviceaccount:{namespace}:rljob-operator");
    let can = |verb, resource, namespace| {
        let kubectl = kubectl.in_namespace(namespace);
        kubectl.run(&["auth", "can-i", verb, resource, &account]).is_ok()
    };
    wait_until("the operator's permissions to be effective", LIMIT, || {
        Ok(can("list", "rljobs.rljob.dev", jobs)
            && can("create", "leases.coordination.k8s.io", namespace))
    })
}
