//! Jobs in a queue of the real Kueue, on nodes: admission of all roles at once, preemption by
//! priority, a stopped queue, deactivation, and fewer engines than the spec wants. Steps that
//! evictions cost are counted.
//!
//! Needs a clone of Kueue: `make e2e-kueue` runs it, `make test` does not. `control_plane::queue`
//! has the same and further states with Workloads whose status the test writes.

use std::time::Instant;

use rljob_tests::files::workspace;
use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Namespace, kueue, rootfs};
use serde_json::{Value, json};

use super::{LIMIT, Run, full_reference, operator_image, steps_done};
use crate::chart::render;
use crate::control_plane::merge;

const QUEUE: &str = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/training";
/// CPUs that a job of one engine requests in thousandths, which are the quota of the queue.
const JOB_CPUS: u64 = 500;
/// Those of a further engine.
const ENGINE_CPUS: u64 = 200;

/// Two nodes with Kueue, the operator and a queue for one job.
fn start() -> Cluster {
    let cluster = Cluster::start(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = rootfs::image(&full_reference(&operator_image()), folder.path()).unwrap();
    cluster.import(&image).unwrap();
    kueue::install(&cluster).unwrap();
    let kubectl = cluster.kubectl();
    kubectl.run(&["create", "namespace", "rljob-system"]).unwrap();
    let values = json!({"kueue": {"enabled": true}, "jobs": {"allowHostPath": true}});
    for object in render(&values) {
        kubectl.in_namespace("rljob-system").apply(&object.to_string()).unwrap();
    }
    let available = ["wait", "--for=condition=Available", "deployments", "--all", "--timeout=180s"];
    kubectl.in_namespace("rljob-system").run(&available).unwrap();
    let permissions = workspace().join("manifests/kueue/permissions.yaml").display().to_string();
    kubectl.run(&["apply", "--filename", &permissions]).unwrap();
    kubectl.run(&["label", "nodes", "--all", "example.com/pool=training"]).unwrap();
    for object in queue_objects() {
        kubectl.apply(&object.to_string()).unwrap();
    }
    cluster
}

/// Flavor, queue and priority class.
fn queue_objects() -> [Value; 3] {
    let object = |kind: &str, name: &str| {
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name},
        })
    };
    let (mut flavor, mut queue, mut class) = (
        object("ResourceFlavor", "training"),
        object("ClusterQueue", "training"),
        object("WorkloadPriorityClass", "high"),
    );
    flavor["spec"] = json!({"nodeLabels": {"example.com/pool": "training"}});
    class["value"] = json!(1000);
    // Roles request memory by default.
    let quota = json!([
        {"name": "cpu", "nominalQuota": format!("{JOB_CPUS}m")},
        {"name": "memory", "nominalQuota": "100Gi"},
    ]);
    queue["spec"] = json!({
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{
            "coveredResources": ["cpu", "memory"],
            "flavors": [{"name": "training", "resources": quota}],
        }],
    });
    [flavor, queue, class]
}

/// A namespace with a LocalQueue.
fn team(cluster: &Cluster) -> Namespace {
    let namespace = Namespace::create(cluster, "team").unwrap();
    let queue = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
        "metadata": {"name": "research"}, "spec": {"clusterQueue": "training"},
    });
    namespace.kubectl.apply(&queue.to_string()).unwrap();
    namespace
}

/// The job of waiting.yaml in the queue, with a merge patch.
fn manifest(name: &str, patch: &Value) -> String {
    let mut job: Value = serde_yaml::from_str(include_str!("waiting.yaml")).unwrap();
    let cpu = |thousandths: u64| json!({"requests": {"cpu": format!("{thousandths}m")}});
    let queued = json!({
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "research"}},
        "spec": {
            "coordinator": {"resources": cpu(100)},
            "inference": {"resources": cpu(ENGINE_CPUS)},
            "trainer": {"resources": cpu(200)},
            "checkpoint": {"everySteps": 100_000},
        },
    });
    merge(&mut job, &queued);
    merge(&mut job, patch);
    job.to_string()
}

/// A job in the queue.
struct Queued<'a> {
    run: Run<'a>,
}

impl<'a> Queued<'a> {
    fn start(cluster: &Cluster, namespace: &'a Namespace, name: &'a str, patch: &Value) -> Self {
        Self { run: Run::start(cluster, namespace, &manifest(name, patch), name) }
    }

    /// Status, reason and message of a condition.
    fn condition(&self, type_: &str) -> [String; 3] {
        let status = self.run.status();
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let found = conditions.find(|it| it["type"] == type_).cloned().unwrap_or_default();
        ["status", "reason", "message"]
            .map(|part| found[part].as_str().unwrap_or_default().to_owned())
    }

    fn pods(&self) -> usize {
        let selector = format!("--selector=rljob.dev/job={}", self.run.job);
        let pods = ["get", "pods", &selector, "--output=name"];
        self.run.namespace.kubectl.run(&pods).unwrap().lines().count()
    }

    /// Waits until the job has no pods, for this reason of Kueue.
    fn wait_until_queued(&self, cause: &str) {
        let is_queued = || {
            let [status, reason, message] = self.condition("Suspended");
            let is_known = status == "True" && reason == "Queued" && message.contains(cause);
            Ok(is_known && self.pods() == 0)
        };
        wait_until(&format!("{} in the queue: {cause}", self.run.job), LIMIT, is_queued)
            .unwrap_or_else(|error| panic!("{error:#}\n{:?}", self.condition("Suspended")));
        self.run.log(&format!("queued: {}", self.condition("Suspended")[2]));
    }

    /// The evicted job has a checkpoint of its last step. Prints what the eviction cost.
    fn lost_no_step(&self, eviction: &str, start: Instant) {
        let (done, status) = (steps_done(&self.run.directory), self.run.status());
        let kept = status["checkpoint"]["step"].as_u64().unwrap_or_default();
        let seconds = start.elapsed().as_secs_f64();
        println!("kueue: {eviction}: {} of {done} steps lost, {seconds:.1} s", done - kept);
        assert_eq!(kept, done, "{status}");
    }

    /// The job trains again from its last step.
    fn resumes(&self) {
        let done = steps_done(&self.run.directory);
        self.run.wait_for_steps(done + 3);
        let seen = self.run.steps();
        assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>(), "each step once");
        assert_eq!(self.run.status()["restarts"], 0);
    }

    /// Path of the job's Workload.
    fn workload(&self) -> String {
        let kubectl = &self.run.namespace.kubectl;
        let workloads = kubectl.get(&["workloads.kueue.x-k8s.io"]).unwrap()["items"].take();
        let workloads = workloads.as_array().unwrap().iter();
        let owner = |it: &&Value| it["metadata"]["ownerReferences"][0]["name"] == self.run.job;
        let own = workloads.clone().find(owner).unwrap_or_else(|| panic!("{workloads:#?}"));
        let name = own["metadata"]["name"].as_str().unwrap();
        let namespace = &self.run.namespace.name;
        format!("/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads/{name}")
    }
}

/// Kueue admits one of two jobs, with pods on the nodes of the flavor; a job of higher priority
/// takes its quota until it has succeeded.
fn priority(cluster: &Cluster, first: &Queued<'_>, second: &Queued<'_>, namespace: &Namespace) {
    first.run.wait_for_steps(5);
    second.wait_until_queued("insufficient");
    let pod = format!("pod/{}-trainer-0", first.run.job);
    let pod = namespace.kubectl.get(&[&pod]).unwrap();
    assert_eq!(pod["spec"]["nodeSelector"]["example.com/pool"], "training");

    let class = json!({"kueue.x-k8s.io/priority-class": "high"});
    let patch = json!({"metadata": {"labels": class}, "spec": {"training": {"steps": 3}}});
    let start = Instant::now();
    let urgent = Queued::start(cluster, namespace, "urgent", &patch);
    first.wait_until_queued("");
    first.lost_no_step("preemption by priority", start);
    wait_until("pods of the urgent job", LIMIT, || Ok(urgent.pods() == 3)).unwrap();
    println!("kueue: the urgent job has pods after {:.1} s", start.elapsed().as_secs_f64());
    urgent.run.wait_for_condition("Succeeded");
    first.resumes();
    assert_eq!(second.pods(), 0, "the older job is admitted first");
    namespace.kubectl.run(&["delete", "rljob/second", "rljob/urgent", "--wait"]).unwrap();
}

fn stopped_queue(cluster: &Cluster, first: &Queued<'_>) {
    let api = cluster.api().unwrap();
    let policy = |policy: &str| {
        let patch = json!({"spec": {"stopPolicy": policy}});
        api.patch(QUEUE, &patch).unwrap();
    };
    let start = Instant::now();
    policy("HoldAndDrain");
    first.wait_until_queued("");
    first.lost_no_step("stopped queue", start);
    policy("None");
    first.resumes();
}

fn deactivation(cluster: &Cluster, first: &Queued<'_>) {
    let api = cluster.api().unwrap();
    let active = |is: bool| {
        api.patch(&first.workload(), &json!({"spec": {"active": is}})).unwrap();
    };
    let start = Instant::now();
    active(false);
    first.wait_until_queued("");
    first.lost_no_step("deactivation", start);
    active(true);
    first.resumes();
}

/// Quota for two of three engines.
fn partial_admission(cluster: &Cluster, namespace: &Namespace) {
    let quota = format!("{}m", JOB_CPUS + ENGINE_CPUS);
    let path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota";
    let edit = json!([{"op": "replace", "path": path, "value": quota}]);
    cluster.api().unwrap().edit(QUEUE, &edit).unwrap();
    let patch = json!({"spec": {"inference": {"replicas": 3, "minReplicas": 1}}});
    let partial = Queued::start(cluster, namespace, "partial", &patch);
    partial.run.wait_for_steps(2);
    assert_eq!(partial.pods(), 4);
    let [status, reason, message] = partial.condition("SettingsEffective");
    assert_eq!([status, reason], ["False", "WithoutEffect"]);
    assert!(message.contains("Kueue granted quota for 2 engines"), "{message}");
}

#[test]
fn a_real_kueue_admits_and_evicts_jobs_which_lose_no_step() {
    let cluster = start();
    let namespace = team(&cluster);
    let first = Queued::start(&cluster, &namespace, "first", &json!({}));
    first.run.wait_for_steps(1);
    let second = Queued::start(&cluster, &namespace, "second", &json!({}));
    priority(&cluster, &first, &second, &namespace);
    stopped_queue(&cluster, &first);
    deactivation(&cluster, &first);
    namespace.kubectl.run(&["delete", "rljob/first", "--wait"]).unwrap();
    partial_admission(&cluster, &namespace);
}
