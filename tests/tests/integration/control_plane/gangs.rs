//! Gangs of jobs on a control plane with native PodGroups and the real scheduler. Nodes have no
//! kubelet: their slots are an extended resource of each test.

use std::sync::OnceLock;

use rljob_tests::files::workspace;
use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Helm, Namespace, idle_node};
use serde_json::{Value, json};

use super::merge;
use super::operator::{
    ACCOUNT, LIMIT, OWN, Operator, SYSTEM, namespace_in, patch, wait_for_condition,
    wait_for_permissions,
};

mod foreign;
mod lifecycle;
mod native;
mod topology;

/// Pods of the gang of [`gang`].
const SIZE: usize = 4;

struct Gangs {
    cluster: Cluster,
    operator: Operator,
}

/// The control plane shared by this module's tests. It ends with the test process.
fn gangs() -> &'static Gangs {
    static GANGS: OnceLock<Gangs> = OnceLock::new();
    GANGS.get_or_init(|| {
        let cluster = Cluster::start_with_gangs(ACCOUNT).unwrap();
        let crds = workspace().join("tests/gangs/crds.yaml").display().to_string();
        cluster.kubectl().run(&["apply", "--filename", &crds]).unwrap();
        let operator = install(&cluster, "native,coscheduling,volcano");
        Gangs { cluster, operator }
    })
}

/// Installs the chart for these schedulers and starts its operator.
fn install(cluster: &Cluster, schedulers: &str) -> Operator {
    let helm = Helm::new(cluster.kubeconfig(), SYSTEM).unwrap();
    let schedulers = format!("--set=gangSchedulers={{{schedulers}}}");
    let values = ["--set=jobs.allowHostPath=true,replicas=0", schedulers.as_str()];
    let install = ["install", "rljob", &Helm::chart(), "--create-namespace"];
    helm.run(&[&install[..], &values].concat()).unwrap();
    super::wait_for_crd(&cluster.kubectl()).unwrap();
    wait_for_permissions(&cluster.kubectl(), SYSTEM, "default").unwrap();
    Operator::start_deployed(cluster, SYSTEM)
}

/// A patch of a job with two engines and two trainers that need a slot each.
fn members(resource: &str, scheduling: &Value) -> Value {
    let role = json!({"replicas": 2, "resources": {"limits": {resource: 1}}});
    json!({"spec": {
        "drainTimeoutSeconds": 1, "inference": role, "trainer": role, "scheduling": scheduling,
    }})
}

/// Starts a job with a gang of [`SIZE`] pods.
fn start(prefix: &str, resource: &str, gang: &Value) -> Namespace {
    let patch = members(resource, &json!({"gang": gang}));
    namespace_in(&gangs().cluster, prefix, &patch)
}

/// Adds a node with slots of a resource.
fn add_node(name: &str, resource: &str, slots: usize) {
    add_node_in(&json!({}), name, resource, slots);
}

/// Adds a node with labels.
fn add_node_in(labels: &Value, name: &str, resource: &str, slots: usize) {
    let mut capacity = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
    merge(&mut capacity, &json!({ resource: slots.to_string() }));
    idle_node::add(&gangs().cluster, name, &capacity, labels).unwrap();
}

/// Names of the engines and trainers that have a node.
fn placed(namespace: &Namespace) -> Vec<String> {
    let pods = namespace.kubectl.get(&["pods", OWN]).unwrap();
    let members = pods["items"].as_array().into_iter().flatten().filter(|pod| {
        let role = &pod["metadata"]["labels"]["rljob.dev/role"];
        role != "coordinator" && pod["spec"]["nodeName"].is_string()
    });
    members.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn wait_until_placed(namespace: &Namespace, count: usize) {
    wait_until(&format!("{count} members to have nodes"), LIMIT, || {
        Ok(placed(namespace).len() == count)
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", gangs().operator.output()));
}

/// The job's PodGroup of an API group.
fn pod_group(namespace: &Namespace, group: &str) -> Option<Value> {
    namespace.kubectl.get(&[&format!("podgroups.{group}/sample-gang")]).ok()
}

/// Waits until the PodGroup needs this many pods.
fn wait_for_least(namespace: &Namespace, group: &str, least: usize) -> Value {
    let seen = || {
        let group = pod_group(namespace, group)?;
        let spec = &group["spec"];
        let found = [&spec["schedulingPolicy"]["gang"]["minCount"], &spec["minMember"]];
        found.contains(&&json!(least)).then_some(group)
    };
    wait_until(&format!("a PodGroup of {least} pods"), LIMIT, || Ok(seen().is_some()))
        .unwrap_or_else(|error| panic!("{error:#}\n{}", gangs().operator.output()));
    seen().unwrap()
}

/// Deletes pods as a kubelet would that has stopped them.
fn remove_pods(namespace: &Namespace, pods: &[&str]) {
    let delete = ["delete", "pods", "--grace-period=0", "--force", "--ignore-not-found"];
    namespace.kubectl.run(&[&delete[..], pods].concat()).unwrap();
}

/// Suspends the job and removes its pods.
fn suspend(namespace: &Namespace) {
    patch(namespace, &json!({"suspend": true}));
    wait_until("the end of the pods", LIMIT, || {
        remove_pods(namespace, &[OWN]);
        let path = "--output=jsonpath={.status.conditions[?(@.type=='Suspended')].status}";
        Ok(namespace.kubectl.run(&["get", "rljob/sample", path])? == "True")
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", gangs().operator.output()));
    wait_for_condition(namespace, "Suspended");
}
