//! The operator's rights: each is needed, and none is missing. It runs with those of install.yaml
//! on a control plane of its own that writes down every request and the binding that allows it,
//! through a whole life of a job; what is asked and what is granted have to be the same.

use std::collections::BTreeSet;
use std::process::Command;

use rljob_tests::files::kubernetes;
use rljob_tests::process::wait_until;
use rljob_tests::{Asked, Cluster, Namespace};
use serde_json::{Value, json};

use super::operator::{
    self, ACCOUNT, KINDS, LIMIT, OWN, Operator, field, namespace_in, patch, wait_for_condition,
    wait_for_pods,
};
use super::pods::{bind, set_status};

/// One verb of one resource in a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    /// `ClusterRole` or `Role`.
    role: &'static str,
    group: String,
    resource: String,
    verb: String,
    /// All, if it names none.
    names: Vec<String>,
}

impl Right {
    fn new(role: &'static str, group: &str, resource: &str, verb: &str) -> Self {
        Self {
            role,
            group: group.to_owned(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
            names: Vec::new(),
        }
    }

    /// Whether it is this one that a request was allowed by.
    fn allowed(&self, asked: &Asked) -> bool {
        let same = (&self.group, &self.resource) == (&asked.group, &asked.resource);
        // An apply that makes the object is authorized for both.
        let verb = self.verb == asked.verb
            || (self.verb == "create" && asked.verb == "patch" && asked.code == 201);
        let named = self.names.is_empty() || self.names.contains(&asked.name);
        same && verb
            && named
            && asked.reason.contains(&format!("of {} \"rljob-operator\"", self.role))
    }
}

fn texts(values: &Value) -> Vec<String> {
    values
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|value| value.as_str().map(ToOwned::to_owned))
        .collect()
}

/// Every right of the operator's role of that kind, as it is installed.
fn granted(cluster: &Cluster, role: &'static str) -> Vec<Right> {
    let object = cluster
        .kubectl()
        .in_namespace("rljob-system")
        .get(&[&format!("{role}/rljob-operator")])
        .unwrap();
    let mut rights = Vec::new();
    for rule in object["rules"].as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                let right = |verb: &String| Right {
                    names: texts(&rule["resourceNames"]),
                    ..Right::new(role, &group, &resource, verb)
                };
                rights.extend(texts(&rule["verbs"]).iter().map(right));
            }
        }
    }
    rights
}

/// Says that an engine's container was started again since its gate was opened; the operator closes
/// it.
fn restart_engine(namespace: &Namespace) {
    let engine = "sample-inference-0";
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let container = json!({"name": "inference", "image": "", "imageID": "", "containerID": "containerd://c2", "ready": true, "restartCount": 1, "state": running});
    let gate = json!({"type": "rljob.dev/weights-synced", "status": "True", "message": "container containerd://c1 holds weights of the run"});
    set_status(
        namespace,
        engine,
        &json!({"startTime": "2026-01-01T00:00:00Z", "phase": "Running", "conditions": [gate], "containerStatuses": [container]}),
    );
    let path = ".status.conditions[?(@.type=='rljob.dev/weights-synced')].status";
    wait_until("the engine's gate to be closed", LIMIT, || {
        Ok(field(namespace, &format!("pod/{engine}"), path) == "False")
    })
    .unwrap();
}

/// Lets a pod be one that nobody ends; the operator removes it.
fn lose(namespace: &Namespace, pod: &str) {
    bind(namespace, pod);
    let uid = || field(namespace, &format!("pod/{pod}"), ".metadata.uid");
    let before = uid();
    namespace.kubectl.run(&["delete", &format!("pod/{pod}"), "--wait=false"]).unwrap();
    let replaced = || {
        Ok(namespace.kubectl.run(&["get", "pods", OWN, "--output=name"])?.lines().count() == 3
            && uid() != before)
    };
    wait_until("another pod in the lost one's place", LIMIT, replaced).unwrap();
}

/// From the start of a job to the end of its children.
fn live(namespace: &Namespace) {
    wait_for_pods(namespace, 3);
    restart_engine(namespace);
    lose(namespace, "sample-trainer-0");
    // The second suspension's event is told as the first was.
    for _ in 0..2 {
        patch(namespace, &json!({"suspend": true}));
        wait_for_condition(namespace, "Suspended");
        patch(namespace, &json!({"suspend": false, "inference": {"replicas": 2}}));
        wait_for_pods(namespace, 4);
    }
    patch(namespace, &json!({"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0}));
    wait_for_condition(namespace, "Stalled");
    wait_until("the children to go", LIMIT, || {
        Ok(namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"])?.is_empty())
    })
    .unwrap();
    namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
}

fn can(cluster: &Cluster, right: &Right) -> bool {
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    let mut kubectl = Command::new(kubernetes("kubectl").unwrap());
    kubectl.arg("--kubeconfig").arg(cluster.kubeconfig()).args([
        "auth",
        "can-i",
        &right.verb,
        format!("{resource}.{}", right.group).trim_end_matches('.'),
        "--as",
        ACCOUNT,
    ]);
    kubectl.arg(format!("--subresource={subresource}"));
    // It exits with 1 where the answer is no.
    String::from_utf8_lossy(&kubectl.output().unwrap().stdout).trim() == "yes"
}

/// Takes one right away and lets a job start, which must not; gives what the job says.
fn without(cluster: &Cluster, right: &Right) -> String {
    let kubectl = cluster.kubectl();
    let role = kubectl.get(&["clusterrole/rljob-operator"]).unwrap();
    let mut rules = role["rules"].clone();
    for rule in rules.as_array_mut().unwrap() {
        if rule["apiGroups"] == json!([right.group]) && rule["resources"] == json!([right.resource])
        {
            rule["verbs"].as_array_mut().unwrap().retain(|verb| *verb != right.verb);
        }
    }
    let replace = |rules: &Value| {
        kubectl
            .run(&[
                "patch",
                "clusterrole/rljob-operator",
                "--type=merge",
                "--patch",
                &json!({"rules": rules}).to_string(),
            ])
            .unwrap();
    };
    rules.as_array_mut().unwrap().retain(|rule| rule["verbs"] != json!([]));
    replace(&rules);
    wait_until("the right to be gone", LIMIT, || Ok(!can(cluster, right))).unwrap();
    let namespace = namespace_in(cluster, "without", &json!({}));
    wait_for_condition(&namespace, "Stalled");
    let words =
        field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message");
    replace(&role["rules"]);
    wait_until("the right to be back", LIMIT, || Ok(can(cluster, right))).unwrap();
    words
}

/// Who checks owner references learns of new kinds only now and then.
fn wait_for_owners(cluster: &Cluster) {
    let owner = json!({"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "x", "uid": "x", "controller": true, "blockOwnerDeletion": true});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "ownerReferences": [owner]}}).to_string();
    let known = || {
        cluster
            .kubectl()
            .run_with_input(&["create", "--dry-run=server", "--filename=-"], &object)
            .map(|_| true)
    };
    wait_until("RLJobs to be known as owners", LIMIT, known).unwrap();
}

#[test]
fn every_right_is_needed_and_none_is_missing() {
    let cluster = Cluster::start_strict(ACCOUNT).unwrap();
    operator::install(&cluster.kubectl()).unwrap();
    super::install_crd(&cluster.kubectl()).unwrap();
    wait_for_owners(&cluster);
    let operator = Operator::start_in(&cluster, "rljob:a", &["--leader-elect"]);
    let namespace = namespace_in(&cluster, "rights", &json!({"spec": {"drainTimeoutSeconds": 1}}));
    live(&namespace);

    let asked = cluster.asked().unwrap();
    let granted: Vec<Right> =
        ["ClusterRole", "Role"].into_iter().flat_map(|role| granted(&cluster, role)).collect();
    let strangers: BTreeSet<&Asked> =
        asked.iter().filter(|asked| !granted.iter().any(|right| right.allowed(asked))).collect();
    assert_eq!(strangers, BTreeSet::new(), "no right of the operator's own allows these");
    let mut unused: Vec<&Right> =
        granted.iter().filter(|right| !asked.iter().any(|asked| right.allowed(asked))).collect();
    // That of owners is asked for by no request, but on the way of one.
    let finalizers = Right::new("ClusterRole", "rljob.dev", "rljobs/finalizers", "update");
    unused.retain(|right| **right != finalizers);
    assert_eq!(unused, Vec::<&Right>::new(), "nothing needs these");
    let places: BTreeSet<&str> = asked
        .iter()
        .filter(|asked| !matches!(asked.verb.as_str(), "list" | "watch"))
        .map(|asked| asked.namespace.as_str())
        .collect();
    assert_eq!(
        places,
        [namespace.name.as_str(), "rljob-system"].into(),
        "it reaches into the namespaces of its jobs and its own only"
    );

    let creates = |right: &&Right| {
        right.role == "ClusterRole" && right.verb == "create" && right.group != "events.k8s.io"
    };
    for right in granted.iter().filter(creates) {
        let words = without(&cluster, right);
        assert!(
            words.contains(&format!("cannot create resource \"{}\"", right.resource)),
            "without {right:?}: {words}"
        );
    }
    let words = without(&cluster, &finalizers);
    assert!(words.contains("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on"), "{words}");
    drop(operator);
}
