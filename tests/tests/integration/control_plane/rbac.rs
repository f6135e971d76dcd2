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
    fn allows(&self, request: &AuditedRequest) -> bool {
        let same = (&self.group, &self.resource) == (&request.group, &request.resource);
        // An apply that creates the object is authorized for both verbs.
        let verb = self.verb == request.verb
            || (self.verb == "create" && request.verb == "patch" && request.code == 201);
        let named = self.names.is_empty() || self.names.contains(&request.name);
        same && verb
            && named
            && request.reason.contains(&format!("of {} \"rljob-operator\"", self.role))
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
    let mut permissions = Vec::new();
    for rule in object["rules"].as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                let permission = |verb: &String| Permission {
                    names: texts(&rule["resourceNames"]),
                    ..Permission::new(role, &group, &resource, verb)
                };
                permissions.extend(texts(&rule["verbs"]).iter().map(permission));
            }
        }
    }
    permissions
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
fn lose_pod(namespace: &Namespace, pod: &str) {
    bind(namespace, pod);
    let uid = || field(namespace, &format!("pod/{pod}"), ".metadata.uid");
    let before = uid();
    namespace.kubectl.run(&["delete", &format!("pod/{pod}"), "--wait=false"]).unwrap();
    let replaced = || {
        Ok(namespace.kubectl.run(&["get", "pods", OWN, "--output=name"])?.lines().count() == 3
            && uid() != before)
    };
    wait_until("the replacement of the lost pod", LIMIT, replaced).unwrap();
}

/// Denies the replacement of a pod by a quota; the operator reads the reason in the events.
fn deny_pod(namespace: &Namespace) {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
        "spec": {"hard": {"pods": "0"}},
    });
    namespace.kubectl.apply(&quota.to_string()).unwrap();
    let pod = "pod/sample-trainer-0";
    namespace.kubectl.run(&["delete", pod, "--grace-period=0", "--force"]).unwrap();
    let message = ".status.conditions[?(@.type=='Ready')].message";
    wait_until("the quota to be in the status", LIMIT, || {
        Ok(field(namespace, "rljob/sample", message).contains("exceeded quota: none"))
    })
    .unwrap();
    namespace.kubectl.run(&["delete", "resourcequota/none"]).unwrap();
    wait_for_pods(namespace, 3);
}

/// Runs the lifecycle from the start of a job to the deletion of its children.
fn run_lifecycle(namespace: &Namespace) {
    wait_for_pods(namespace, 3);
    restart_engine(namespace);
    deny_pod(namespace);
    lose_pod(namespace, "sample-trainer-0");
    // The second suspension creates a separate event.
    for _ in 0..2 {
        patch(namespace, &json!({"suspend": true}));
        wait_for_condition(namespace, "Suspended");
        patch(namespace, &json!({"suspend": false, "inference": {"replicas": 2}}));
        wait_for_pods(namespace, 4);
    }
    patch(namespace, &json!({"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0}));
    wait_for_condition(namespace, "Stalled");
    wait_until("the children to be deleted", LIMIT, || {
        Ok(namespace.kubectl.run(&["get", KINDS, OWN, "--output=name"])?.is_empty())
    })
    .unwrap();
    namespace.kubectl.run(&["delete", "rljob/sample"]).unwrap();
}

fn can(cluster: &Cluster, permission: &Permission) -> bool {
    let (resource, subresource) =
        permission.resource.split_once('/').unwrap_or((&permission.resource, ""));
    let mut kubectl = Command::new(kubernetes("kubectl").unwrap());
    kubectl.arg("--kubeconfig").arg(cluster.kubeconfig()).args([
        "auth",
        "can-i",
        &permission.verb,
        format!("{resource}.{}", permission.group).trim_end_matches('.'),
        "--as",
        ACCOUNT,
    ]);
    kubectl.arg(format!("--subresource={subresource}"));
    // kubectl exits with 1 if the answer is no.
    String::from_utf8_lossy(&kubectl.output().unwrap().stdout).trim() == "yes"
}

/// Removes one permission, starts a job, and returns the message of its condition `Stalled`.
fn without(cluster: &Cluster, permission: &Permission) -> String {
    let kubectl = cluster.kubectl();
    let role = kubectl.get(&["clusterrole/rljob-operator"]).unwrap();
    let mut rules = role["rules"].clone();
    for rule in rules.as_array_mut().unwrap() {
        if rule["apiGroups"] == json!([permission.group])
            && rule["resources"] == json!([permission.resource])
        {
            rule["verbs"].as_array_mut().unwrap().retain(|verb| *verb != permission.verb);
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
    wait_until("the permission to be removed", LIMIT, || Ok(!can(cluster, permission))).unwrap();
    let namespace = namespace_in(cluster, "without", &json!({}));
    wait_for_condition(&namespace, "Stalled");
    let message =
        field(&namespace, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message");
    replace(&role["rules"]);
    wait_until("the permission to be restored", LIMIT, || Ok(can(cluster, permission))).unwrap();
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
    run_lifecycle(&namespace);

    let requests = cluster.audited_requests().unwrap();
    let granted: Vec<Permission> =
        ["ClusterRole", "Role"].into_iter().flat_map(|role| granted(&cluster, role)).collect();
    let unauthorized: BTreeSet<&AuditedRequest> = requests
        .iter()
        .filter(|request| !granted.iter().any(|permission| permission.allows(request)))
        .collect();
    assert_eq!(unauthorized, BTreeSet::new(), "requests without a matching permission");
    let mut unused: Vec<&Permission> = granted
        .iter()
        .filter(|permission| !requests.iter().any(|request| permission.allows(request)))
        .collect();
    // No request uses the finalizers permission directly; the admission plugin checks it for owner
    // references.
    let finalizers = Permission::new("ClusterRole", "rljob.dev", "rljobs/finalizers", "update");
    unused.retain(|permission| **permission != finalizers);
    assert_eq!(unused, Vec::<&Permission>::new(), "unused permissions");
    let namespaces: BTreeSet<&str> = requests
        .iter()
        .filter(|request| !matches!(request.verb.as_str(), "list" | "watch"))
        .map(|request| request.namespace.as_str())
        .collect();
    assert_eq!(
        namespaces,
        [namespace.name.as_str(), "rljob-system"].into(),
        "requests outside the namespaces of the operator and its jobs"
    );

    let creates = |permission: &&Permission| {
        permission.role == "ClusterRole"
            && permission.verb == "create"
            && permission.group != "events.k8s.io"
    };
    for permission in granted.iter().filter(creates) {
        let message = without(&cluster, permission);
        assert!(
            message.contains(&format!("cannot create resource \"{}\"", permission.resource)),
            "without {permission:?}: {message}"
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
