//! Releases of the Helm chart on a real API server: live jobs over upgrade, rollback, removal and a
//! new installation; an installation by kubectl that a release takes over; objects of all values.
//! `documents` runs the commands of docs/install.md and docs/upgrades.md.

use std::fs;
use std::path::PathBuf;

use rljob_tests::files;
use rljob_tests::process::{run, wait_until};
use rljob_tests::{Cluster, Helm, Kubectl, Namespace};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::operator::{
    LIMIT, OWN, Operator, SYSTEM, field, namespace_in, patch, wait_for_condition,
    wait_for_permissions, wait_for_pods,
};

mod documents;
mod kustomize;
mod namespaces;
mod users;

const CRD: &str = "crd/rljobs.rljob.dev";
const DEPLOYMENT: &str = "deployment/rljob-operator";
/// Values of a release that shares the objects of another in its cluster.
const SHARED: &str = "crd.install=false,userRoles.create=false";

/// A control plane with a namespace that enforces the *restricted* Pod Security Standard.
fn cluster_with(namespace: &str) -> Cluster {
    let cluster = Cluster::start(0).unwrap();
    create_restricted(&cluster.kubectl(), namespace);
    cluster
}

fn create_restricted(kubectl: &Kubectl, namespace: &str) {
    kubectl.run(&["create", "namespace", namespace]).unwrap();
    let label = "pod-security.kubernetes.io/enforce=restricted";
    kubectl.run(&["label", "namespace", namespace, label]).unwrap();
}

/// Installs a release in a namespace for the jobs of one.
fn install(cluster: &Cluster, namespace: &str, jobs: &str, more: &str) -> anyhow::Result<String> {
    let helm = Helm::new(cluster.kubeconfig(), namespace)?;
    let values = format!("--set=jobs.namespace={jobs},jobs.allowHostPath=true,{more}");
    helm.run(&["install", "rljob", &Helm::chart(), &values])
}

/// Installs a release for the jobs of the same namespace, in a cluster with another release, and
/// starts its operator.
pub(super) fn start_release(cluster: &Cluster, namespace: &str) -> Operator {
    install(cluster, namespace, namespace, SHARED).unwrap();
    start_operator(cluster, namespace, namespace)
}

/// Starts the operator that the release in a namespace runs for the jobs of another.
fn start_operator(cluster: &Cluster, namespace: &str, jobs: &str) -> Operator {
    super::wait_for_crd(&cluster.kubectl()).unwrap();
    wait_for_permissions(&cluster.kubectl(), namespace, jobs).unwrap();
    let operator = Operator::start_deployed(cluster, namespace);
    wait_to_reconcile(&operator);
    operator
}

fn wait_to_reconcile(operator: &Operator) {
    wait_until("the operator to lead", LIMIT, || Ok(operator.metric("rljob_leader")? > 0.5))
        .unwrap();
    wait_until("the operator to be ready", LIMIT, || operator.is_ready()).unwrap();
}

/// Stops an operator as kubelet does: it releases its Lease.
fn stop(operator: Operator) {
    operator.signal(Signal::TERM);
    operator.wait_for_log("released the lease");
    drop(operator);
}

/// The chart of an earlier release: its CRD lacks the column `Attempt`.
fn earlier_chart(folder: &TempDir) -> String {
    let chart = folder.path().join("rljob");
    run(std::process::Command::new("cp").arg("--recursive").arg(Helm::chart()).arg(&chart))
        .unwrap();
    let edit = |name: &str, from: &str, to: &str| {
        let path = chart.join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{name}: {from}");
        fs::write(&path, text.replace(from, to)).unwrap();
    };
    let column = "    - jsonPath: .status.attempt\n      name: Attempt\n      priority: 1\n      \
        type: integer\n";
    edit("files/rljobs.rljob.dev.yaml", column, "");
    edit("Chart.yaml", "\nversion: 0.1.0\n", "\nversion: 0.0.9\n");
    chart.display().to_string()
}

/// Whether the installed CRD has the column of this release.
fn has_new_column(kubectl: &Kubectl) -> bool {
    let columns = "--output=jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}";
    let names = kubectl.run(&["get", CRD, columns]).unwrap();
    names.split_whitespace().any(|name| name == "Attempt")
}

/// What no change of a release may touch: the job's spec, its StatefulSets and pods, and the
/// operator's token key.
fn kept(namespace: &Namespace) -> Value {
    let kubectl = &namespace.kubectl;
    let job = kubectl.get(&["rljob/sample"]).unwrap();
    let all = |kind: &str, fields: &str| {
        let path = format!("--output=jsonpath={{range .items[*]}}{fields}{{\"\\n\"}}{{end}}");
        kubectl.run(&["get", kind, OWN, &path]).unwrap()
    };
    let key = "--output=jsonpath={.metadata.uid}";
    let secret = ["get", "secret/rljob-operator-token-key", key];
    json!({
        "job": [job["metadata"]["uid"], job["metadata"]["generation"], job["spec"]],
        "sets": all("statefulsets", "{.metadata.uid} {.metadata.generation}"),
        "pods": all("pods", "{.metadata.uid}"),
        "key": kubectl.in_namespace(SYSTEM).run(&secret).unwrap(),
    })
}

/// A job that suspends without a coordinator.
fn create_job(cluster: &Cluster, prefix: &str) -> Namespace {
    let namespace = namespace_in(cluster, prefix, &json!({"spec": {"drainTimeoutSeconds": 1}}));
    wait_for_pods(&namespace, 3);
    namespace
}

fn image_of(namespace: &Namespace) -> String {
    field(namespace, "pod/sample-trainer-0", ".spec.containers[0].image")
}

fn replicas(kubectl: &Kubectl) -> String {
    kubectl.run(&["get", DEPLOYMENT, "--output=jsonpath={.spec.replicas}"]).unwrap()
}

#[test]
fn jobs_survive_upgrade_rollback_removal_and_a_new_installation() {
    let (cluster, folder) = (cluster_with(SYSTEM), tempfile::tempdir().unwrap());
    let (admin, system) = (cluster.kubectl(), cluster.kubectl().in_namespace(SYSTEM));
    let helm = Helm::new(cluster.kubeconfig(), SYSTEM).unwrap();
    let (earlier, chart) = (earlier_chart(&folder), Helm::chart());
    let first = "--set=jobs.allowHostPath=true,jobs.image=rljob:a";
    helm.run(&["install", "rljob", &earlier, first]).unwrap();
    let operator = start_operator(&cluster, SYSTEM, SYSTEM);
    let namespace = create_job(&cluster, "kept");
    let before = kept(&namespace);
    assert_eq!((image_of(&namespace), has_new_column(&admin)), ("rljob:a".to_owned(), false));

    stop(operator);
    let second = "--set=jobs.allowHostPath=true,jobs.image=rljob:b,replicas=3";
    helm.run(&["upgrade", "rljob", &chart, second]).unwrap();
    assert_eq!((replicas(&system), has_new_column(&admin)), ("3".to_owned(), true));
    let operator = start_operator(&cluster, SYSTEM, SYSTEM);
    let later = create_job(&cluster, "later");
    assert_eq!(image_of(&later), "rljob:b", "new jobs get the new image");
    assert_eq!(kept(&namespace), before, "upgrade");

    stop(operator);
    helm.run(&["rollback", "rljob", "1"]).unwrap();
    assert_eq!((replicas(&system), has_new_column(&admin)), ("2".to_owned(), false));
    let operator = start_operator(&cluster, SYSTEM, SYSTEM);
    assert_eq!(image_of(&create_job(&cluster, "last")), "rljob:a");
    assert_eq!(kept(&namespace), before, "rollback");

    stop(operator);
    remove(&helm, &cluster);
    assert_eq!(kept(&namespace), before, "removal");

    helm.run(&["install", "rljob", &chart, first]).unwrap();
    let operator = start_operator(&cluster, SYSTEM, SYSTEM);
    assert_eq!(kept(&namespace), before, "new installation");
    // The new operator manages the job.
    patch(&namespace, &json!({"suspend": true}));
    wait_for_condition(&namespace, "Suspended");
    wait_for_pods(&namespace, 0);
    drop(operator);
}

/// Uninstalls the release, of which the CRD remains.
fn remove(helm: &Helm, cluster: &Cluster) {
    let output = helm.run(&["uninstall", "rljob", "--wait"]).unwrap();
    assert!(output.contains("[CustomResourceDefinition] rljobs.rljob.dev"), "{output}");
    let kinds = "deployments,services,serviceaccounts,roles,rolebindings,clusterroles,\
        clusterrolebindings,networkpolicies,poddisruptionbudgets,validatingadmissionpolicies,\
        validatingadmissionpolicybindings";
    let labelled = "--selector=app.kubernetes.io/instance=rljob";
    let left = ["get", kinds, "--all-namespaces", labelled, "--output=name"];
    assert_eq!(cluster.kubectl().run(&left).unwrap(), "", "objects of the release");
}

#[test]
fn pods_of_the_release_meet_the_restricted_pod_security_standard() {
    let cluster = super::cluster();
    let namespace = Namespace::create(cluster, "restricted").unwrap();
    let label = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl().run(&["label", "namespace", &namespace.name, label]).unwrap();
    let values = ["--set=crd.install=false,userRoles.create=false,admissionPolicy.enabled=false"];
    let jobs = format!("--set=jobs.namespace={}", namespace.name);
    let helm = Helm::new(cluster.kubeconfig(), &namespace.name).unwrap();
    helm.run(&["install", "rljob", &Helm::chart(), values[0], &jobs]).unwrap();
    let pods = || namespace.kubectl.run(&["get", "pods", "--output=name"]);
    wait_until("the operator's pods", LIMIT, || Ok(pods()?.lines().count() == 2)).unwrap();
}

#[test]
fn an_installation_by_kubectl_is_taken_over() {
    let cluster = Cluster::start(0).unwrap();
    let (admin, system) = (cluster.kubectl(), cluster.kubectl().in_namespace(SYSTEM));
    super::operator::install(&admin).unwrap();
    let uid = || system.run(&["get", DEPLOYMENT, "--output=jsonpath={.metadata.uid}"]).unwrap();
    let before = uid();
    let helm = Helm::new(cluster.kubeconfig(), SYSTEM).unwrap();
    let chart = Helm::chart();
    let install = ["install", "rljob", &chart, "--set=replicas=3"];
    let message = format!("{:#}", helm.run(&install).unwrap_err());
    assert!(message.contains("cannot be imported into the current release"), "{message}");
    helm.run(&[&install[..], &["--take-ownership", "--force-conflicts"]].concat()).unwrap();
    assert_eq!((uid(), replicas(&system)), (before, "3".to_owned()));
}

/// Values of every switch, beside the defaults.
fn all_values(namespace: &str) -> [Value; 3] {
    let peers = json!([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}]);
    let spread = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
    [
        json!({}),
        json!({"jobs": {"namespace": namespace}}),
        json!({
            "image": {"digest": format!("sha256:{}", "0".repeat(64))},
            "imagePullSecrets": [{"name": "keys"}],
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"a": "b"},
            "topologySpreadConstraints": [spread],
            "podLabels": {"a": "b"}, "podAnnotations": {"a": "b"},
            "env": [{"name": "RUST_LOG", "value": "debug"}],
            "serviceAccount": {"annotations": {"a": "b"}},
            "kueue": {"enabled": true, "requireQueue": {"a": "b"}},
            "gangSchedulers": ["native", "coscheduling", "volcano"],
            "networkPolicy": {"scrapers": peers, "apiServerCIDRs": ["10.96.0.1/32"]},
            "podMonitor": {"enabled": true, "jobs": true, "labels": {"a": "b"}},
            "jobs": {"scrapers": {"namespaceSelector": {"a": "b"}}},
            "prometheusRule": {
                "enabled": true, "labels": {"a": "b"}, "for": {"RLJobFailed": "1h30m"},
                "thresholds": {"RLJobGpusIdle": 0.5},
            },
            "dashboards": {"enabled": true, "labels": {"a": "b"}},
        }),
    ]
}

#[test]
fn the_api_server_accepts_all_objects_strictly() {
    let cluster = super::cluster();
    let namespace = Namespace::create(cluster, "strict").unwrap();
    for kind in ["podmonitors", "prometheusrules"] {
        let file: PathBuf = files::prometheus_operator(&format!("{kind}.yaml")).unwrap();
        let apply = ["apply", "--server-side", "--filename", &file.display().to_string()];
        cluster.kubectl().run(&apply).unwrap();
        let definition = format!("{kind}.monitoring.coreos.com");
        cluster.kubectl().wait_for_definition(&definition).unwrap();
    }
    let helm = Helm::offline(&namespace.name).unwrap();
    for values in all_values(&namespace.name) {
        let template = ["template", "strict", &Helm::chart(), "--values=-"];
        let objects = helm.run_with_input(&template, &values.to_string()).unwrap();
        let dry_run = ["apply", "--dry-run=server", "--validate=strict", "--filename=-"];
        namespace.kubectl.run_with_input(&dry_run, &objects).unwrap();
    }
}
