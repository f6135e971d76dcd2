//! The operator's RBAC permissions are necessary and sufficient. An operator with the permissions
//! of install.yaml runs the complete lifecycle of a job; the audit log shows each request and the
//! binding that allowed it, which must match the granted permissions exactly.

use std::collections::BTreeSet;
use std::process::Command;

use rljob_tests::files::kubernetes;
use rljob_tests::process::wait_until;
use rljob_tests::{AuditedRequest, Cluster, Namespace};
use serde_json::{Value, json};

use super::operator::{
    self, ACCOUNT, KINDS, LIMIT, OWN, Operator, field, namespace_in, patch, wait_for_condition,
    wait_for_pods,
};
use super::pods::{bind, set_status};

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Permission {
    /// `ClusterRole` or `Role`.
    role: &'static str,
    group: String,
    resource: String,
    verb: String,
    /// Restricts the permission to these names unless empty.
    names: Vec<String>,
}

impl Permission {
    fn new(role: &'static str, group: &str, resource: &str, verb: &str) -> Self {
        Self {
            role,
            group: group.to_owned(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
            names: Vec::new(),
        }
    }

    /// Whether this permission allowed a request.
    fn allowed(&self, asked: &AuditedRequest) -> bool {
        let same = (&self.group, &self.resource) == (&asked.group, &asked.resource);
        // An apply that creates the object is authorized for both verbs.
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

/// All permissions of the operator's role of this kind.
fn granted(cluster: &Cluster, role: &'static str) -> Vec<Permission> {
    let object = cluster
        .kubectl()
        .in_namespace("rljob-system")
        .get(&[&format!("{role}/rljob-operator")])
        .unwrap();
    let mut rights = Vec::new();
    for rule in object["rules"].as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                let right = |verb: &String| Permission {
                    names: texts(&rule["resourceNames"]),
                    ..Permission::new(role, &group, &resource, verb)
                };
                rights.extend(texts(&rule["verbs"]).iter().map(right));
            }
        }
    }
    rights
}

/// Sets the status of an engine whose container restarted after its gate was opened; the operator
/// closes the gate.
fn restart_engine(namespace: &Namespace) {
    let engine = "sample-inference-0";
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let container = json!({
        "name": "inference", "image": "", "imageID": "", "containerID": "containerd://c2",
        "ready": true, "restartCount": 1, "state": running,
    });
    let gate = json!({
        "type": "rljob.dev/weights-synced", "status": "True",
        "message": "container containerd://c1 holds weights of the run",
    });
    set_status(
        namespace,
        engine,
        &json!({
            "startTime": "2026-01-01T00:00:00Z", "phase": "Running", "conditions": [gate],
            "containerStatuses": [container],
        }),
    );
    let path = ".status.conditions[?(@.type=='rljob.dev/weights-synced')].status";
    wait_until("the engine's gate to be closed", LIMIT, || {
        Ok(field(namespace, &format!("pod/{engine}"), path) == "False")
    })
    .unwrap();
}

/// Deletes a pod that no kubelet terminates; the operator force-deletes it.
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

/// Runs the lifecycle from the start of a job to the deletion of its children.
fn live(namespace: &Namespace) {
    wait_for_pods(namespace, 3);
    restart_engine(namespace);
    lose(namespace, "sample-trainer-0");
    // The second suspension creates a separate event.
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

fn can(cluster: &Cluster, right: &Permission) -> bool {
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
    // kubectl exits with 1 if the answer is no.
    String::from_utf8_lossy(&kubectl.output().unwrap().stdout).trim() == "yes"
}

/// Removes one permission, starts a job, and returns the message of its condition `Stalled`.
fn without(cluster: &Cluster, right: &Permission) -> String {
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
    let message =
        field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message");
    replace(&role["rules"]);
    wait_until("the right to be back", LIMIT, || Ok(can(cluster, right))).unwrap();
    message
}

/// The admission plugin discovers new kinds with a delay.
fn wait_for_owners(cluster: &Cluster) {
    let owner = json!({
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "x", "uid": "x",
        "controller": true, "blockOwnerDeletion": true,
    });
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "x", "ownerReferences": [owner]},
    })
    .to_string();
    let known = || {
        cluster
            .kubectl()
            .run_with_input(&["create", "--dry-run=server", "--filename=-"], &object)
            .map(|_| true)
    };
    wait_until("RLJobs to be known as owners", LIMIT, known).unwrap();
}

#[test]
fn permissions_are_necessary_and_sufficient() {
    let cluster = Cluster::start_strict(ACCOUNT).unwrap();
    operator::install(&cluster.kubectl()).unwrap();
    super::install_crd(&cluster.kubectl()).unwrap();
    wait_for_owners(&cluster);
    let operator = Operator::start_in(&cluster, "rljob:a", &["--leader-elect"]);
    let namespace = namespace_in(&cluster, "rights", &json!({"spec": {"drainTimeoutSeconds": 1}}));
    live(&namespace);

    let asked = cluster.audited_requests().unwrap();
    let granted: Vec<Permission> =
        ["ClusterRole", "Role"].into_iter().flat_map(|role| granted(&cluster, role)).collect();
    let unauthorized: BTreeSet<&AuditedRequest> =
        asked.iter().filter(|asked| !granted.iter().any(|right| right.allowed(asked))).collect();
    assert_eq!(unauthorized, BTreeSet::new(), "requests without a matching permission");
    let mut unused: Vec<&Permission> =
        granted.iter().filter(|right| !asked.iter().any(|asked| right.allowed(asked))).collect();
    // No request uses the finalizers permission directly; the admission plugin checks it for owner
    // references.
    let finalizers = Permission::new("ClusterRole", "rljob.dev", "rljobs/finalizers", "update");
    unused.retain(|right| **right != finalizers);
    assert_eq!(unused, Vec::<&Permission>::new(), "unused permissions");
    let places: BTreeSet<&str> = asked
        .iter()
        .filter(|asked| !matches!(asked.verb.as_str(), "list" | "watch"))
        .map(|asked| asked.namespace.as_str())
        .collect();
    assert_eq!(
        places,
        [namespace.name.as_str(), "rljob-system"].into(),
        "requests outside the namespaces of the operator and its jobs"
    );

    let creates = |right: &&Permission| {
        right.role == "ClusterRole" && right.verb == "create" && right.group != "events.k8s.io"
    };
    for right in granted.iter().filter(creates) {
        let message = without(&cluster, right);
        assert!(
            message.contains(&format!("cannot create resource \"{}\"", right.resource)),
            "without {right:?}: {message}"
        );
    }
    let message = without(&cluster, &finalizers);
    assert!(
        message.contains(
            "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set \
                finalizers on",
        ),
        "{message}",
    );
    drop(operator);
}
