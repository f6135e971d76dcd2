//! NetworkPolicies on a node that enforces them: which pods reach which ports of a job, its roles,
//! the operator and servers outside, before and during enforcement. The run continues. Then the
//! servers outside are narrowed to blocks of addresses.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use axum::{Json, Router, routing};
use rljob_crds::names::{COORDINATOR_PORT, ENGINE_PORT, SUPERVISOR_PORT};
use rljob_tests::node::{API_ADDRESS, DNS_ADDRESS};
use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Kubectl, Namespace, NetworkNamespace, policies, rootfs};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use self::expected::{Reached, TARGETS, admitted, narrowed};
use super::{Run, full_reference, install_operator, operator_image};
use crate::chart::render;

mod expected;

/// Time limit until rules follow policies and pods.
const LIMIT: Duration = Duration::from_secs(60);
/// Port of the verifier that the spec names.
const VERIFIER_PORT: u16 = 8000;
/// A port at which the operator reaches any address, as the API server's.
const HTTPS_PORT: u16 = 443;
/// A port that no policy names; stands for the random ports of process groups.
const OTHER_PORT: u16 = 9999;
/// Address of the metadata service in clouds.
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const OPERATOR_PORT: u16 = 8082;
const SCRAPER_FLAGS: [&str; 2] =
    ["--metrics-namespace-selector=team=monitoring", "--metrics-pod-selector=app=scraper"];

/// A running pod.
struct Pod {
    address: Ipv4Addr,
    network: NetworkNamespace,
}

impl Pod {
    fn of(kubectl: &Kubectl, name: &str) -> Self {
        let pod = kubectl.get(&[&format!("pod/{name}")]).unwrap();
        Self {
            address: pod["status"]["podIP"].as_str().unwrap().parse().unwrap(),
            network: NetworkNamespace::of_pod(pod["metadata"]["uid"].as_str().unwrap()).unwrap(),
        }
    }

    /// Starts a pod that holds a network namespace and waits until it runs.
    fn start(namespace: &Namespace, name: &str, labels: &Value) -> Self {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [{
                "name": "pause", "image": "rljob.local/pause:test", "imagePullPolicy": "Never",
            }]},
        });
        namespace.kubectl.apply(&pod.to_string()).unwrap();
        let ready = ["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=120s"];
        namespace.kubectl.run(&ready).unwrap();
        Self::of(&namespace.kubectl, name)
    }

    fn listen(&self, port: u16) -> TcpListener {
        let listener = self.network.listen((Ipv4Addr::UNSPECIFIED, port).into()).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }
}

/// The pods beside the job.
struct Surroundings {
    sources: Vec<(&'static str, Pod)>,
    verifier: Pod,
    namespaces: Vec<Namespace>,
}

impl Surroundings {
    fn start(cluster: &Cluster) -> Self {
        let namespaces = ["job", "elsewhere", "monitoring"]
            .map(|name| Namespace::create(cluster, name).unwrap());
        let [job, elsewhere, monitoring] = &namespaces;
        let label = format!("namespace/{}", monitoring.name);
        monitoring.kubectl.run(&["label", &label, "team=monitoring"]).unwrap();
        let of_the_job = json!({"rljob.dev/job": "net", "rljob.dev/role": "coordinator"});
        let operator = json!({"app.kubernetes.io/name": "rljob-operator"});
        let scraper = json!({"app": "scraper"});
        let sources = [
            ("stranger", elsewhere, json!({})),
            ("stranger with the job's labels", elsewhere, of_the_job),
            ("stranger with the operator's label", elsewhere, operator),
            ("stranger with the scraper's label", elsewhere, scraper.clone()),
            ("other pod of the job's namespace", job, json!({})),
            ("other pod of the scraper's namespace", monitoring, json!({})),
            ("scraper", monitoring, scraper),
        ];
        let start = |(number, (name, namespace, labels)): (usize, (&'static str, _, Value))| {
            (name, Pod::start(namespace, &format!("source-{number}"), &labels))
        };
        Self {
            sources: sources.into_iter().enumerate().map(start).collect(),
            verifier: Pod::start(elsewhere, "verifier", &json!({})),
            namespaces: namespaces.into(),
        }
    }
}

/// The pods of the job and the operator, with listeners of the test.
struct Observed<'a> {
    surroundings: &'a Surroundings,
    roles: Vec<(&'static str, Pod)>,
    targets: Vec<(&'static str, SocketAddr)>,
    listeners: Vec<TcpListener>,
}

impl<'a> Observed<'a> {
    fn new(surroundings: &'a Surroundings, job: &Kubectl, system: &Kubectl) -> Self {
        let of_job = |role| (role, Pod::of(job, &format!("net-{role}-0")));
        let running = "--field-selector=status.phase=Running";
        let operators = system.get(&["pods", running]).unwrap();
        let name = operators["items"][0]["metadata"]["name"].as_str().unwrap();
        let [coordinator, trainer, inference] = ["coordinator", "trainer", "inference"].map(of_job);
        let operator = ("operator", Pod::of(system, name));
        let verifier = &surroundings.verifier;
        let at = |pod: &Pod, port| SocketAddr::from((pod.address, port));
        let ports = [
            (&coordinator.1, COORDINATOR_PORT),
            (&coordinator.1, OTHER_PORT),
            (&inference.1, ENGINE_PORT),
            (&inference.1, OTHER_PORT),
            (&operator.1, OPERATOR_PORT),
            (&operator.1, OTHER_PORT),
            (&trainer.1, SUPERVISOR_PORT),
            (&trainer.1, OTHER_PORT),
            (verifier, HTTPS_PORT),
            (verifier, VERIFIER_PORT),
            (verifier, OTHER_PORT),
        ];
        let others = ports.iter().filter(|(_, port)| [OTHER_PORT, HTTPS_PORT].contains(port));
        let listeners = others.map(|(pod, port)| pod.listen(*port)).collect();
        let [c, c9, e, e9, o, o9, t, t9, v4, v8, v9] = ports.map(|(pod, port)| at(pod, port));
        let server = |address: Ipv4Addr, port: u16| SocketAddr::from((address, port));
        let (api, dns) = (server(API_ADDRESS, 443), server(DNS_ADDRESS, 53));
        let metadata = server(METADATA, VERIFIER_PORT);
        let addresses = [api, c, c9, dns, e, e9, metadata, o, o9, t, t9, v4, v8, v9];
        Self {
            surroundings,
            targets: TARGETS.into_iter().zip(addresses).collect(),
            roles: vec![operator, coordinator, trainer, inference],
            listeners,
        }
    }

    fn reached(&self) -> Reached {
        let reached = std::thread::scope(|scope| {
            let pods = self.surroundings.sources.iter().chain(&self.roles);
            let tasks: Vec<_> = pods
                .map(|(name, pod)| (*name, scope.spawn(move || self.reached_by(&pod.network))))
                .collect();
            tasks.into_iter().map(|(name, task)| (name, task.join().unwrap())).collect()
        });
        // Connections that nothing accepts fill the backlog.
        for listener in &self.listeners {
            while listener.accept().is_ok() {}
        }
        reached
    }

    fn reached_by(&self, source: &NetworkNamespace) -> BTreeSet<&'static str> {
        let reached = self.targets.iter().filter(|(_, address)| source.reaches(*address).unwrap());
        reached.map(|(name, _)| *name).collect()
    }

    /// Waits until each source reaches the expected targets and no others.
    fn wait_for(&self, what: &str, expected: &Reached) {
        let mut last = Reached::new();
        let matches = || {
            last = self.reached();
            Ok(last == *expected)
        };
        if wait_until(what, LIMIT, matches).is_err() {
            assert_eq!(last, *expected, "{what}");
        }
        eprintln!("net: {what}");
    }
}

/// Scores every completion with 1 until the value is dropped.
fn serve_scores(listener: TcpListener) -> Runtime {
    let score = || async { Json(json!({"reward": 1.0})) };
    let app = Router::new().route("/score", routing::post(score));
    let runtime = Runtime::new().unwrap();
    listener.set_nonblocking(true).unwrap();
    runtime.spawn(async move {
        axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), app).await.unwrap();
    });
    runtime
}

/// Starts the operator with additional arguments.
fn add_arguments(system: &Kubectl, arguments: &[&str]) {
    let argument = |argument: &&str| {
        json!({
            "op": "add", "path": "/spec/template/spec/containers/0/command/-", "value": argument,
        })
    };
    let patch = json!(arguments.iter().map(argument).collect::<Vec<_>>()).to_string();
    let operator = "deployment/rljob-operator";
    system.run(&["patch", operator, "--type=json", "--patch", &patch]).unwrap();
    system.run(&["rollout", "status", operator, "--timeout=120s"]).unwrap();
}

/// Restricts the servers outside of jobs, and the API server, to one address each.
fn narrow(system: &Kubectl) {
    let block = format!("{API_ADDRESS}/32");
    let objects = render(&json!({"networkPolicy": {"apiServerCIDRs": [block]}}));
    let policy = objects.iter().find(|object| object["kind"] == "NetworkPolicy").unwrap();
    system.apply(&policy.to_string()).unwrap();
    add_arguments(system, &[&format!("--egress-cidrs={METADATA}/32")]);
}

/// Replaces every pod of the job and the operator; the run and its status continue.
fn replace_pods(run: &Run<'_>, system: &Kubectl) {
    run.namespace.kubectl.run(&["delete", "pods", "--selector=rljob.dev/job=net"]).unwrap();
    system.run(&["delete", "pods", "--all"]).unwrap();
    let steps = super::steps_done(&run.directory) + 5;
    run.wait_for_steps(steps);
    let reported = || Ok(run.status()["progress"]["step"].as_u64() >= Some(steps));
    wait_until("the operator to report the step", super::LIMIT, reported).unwrap();
    run.log("every pod was replaced");
}

#[test]
fn a_job_runs_with_enforced_policies_and_others_reach_only_what_they_admit() {
    let cluster = Cluster::start(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = rootfs::image(&full_reference(&operator_image()), folder.path()).unwrap();
    cluster.import(&image).unwrap();
    install_operator(&cluster);
    let system = cluster.kubectl().in_namespace("rljob-system");
    add_arguments(&system, &SCRAPER_FLAGS);
    let metadata = format!("{METADATA}/32");
    cluster.run("ip", &["addr", "add", &metadata, "dev", "lo"]).unwrap();
    let _metadata = serve_scores(cluster.listen((METADATA, VERIFIER_PORT).into()).unwrap());

    let surroundings = Surroundings::start(&cluster);
    let _verifier = serve_scores(surroundings.verifier.listen(VERIFIER_PORT));
    let verifier = format!("{}:{VERIFIER_PORT}", surroundings.verifier.address);
    let manifest = include_str!("network.yaml").replace("VERIFIER", &verifier);
    let job = &surroundings.namespaces[0];
    let run = Run::start(&cluster, job, &manifest, "net");
    run.wait_for_steps(2);

    let observed = Observed::new(&surroundings, &job.kubectl, &system);
    let everything = || admitted().into_keys().map(|name| (name, TARGETS.into())).collect();
    observed.wait_for("without enforcement, every pod reaches every port", &everything());
    let _enforced = policies::enforce(&cluster).unwrap();
    observed.wait_for("enforcement of the policies", &admitted());
    drop(observed);
    replace_pods(&run, &system);
    Observed::new(&surroundings, &job.kubectl, &system)
        .wait_for("enforcement for pods that started with it", &admitted());
    narrow(&system);
    Observed::new(&surroundings, &job.kubectl, &system)
        .wait_for("enforcement for blocks of addresses", &narrowed());
    run.namespace.kubectl.run(&["delete", "rljob/net", "--wait"]).unwrap();
}
