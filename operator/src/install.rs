//! Manifests that install the operator (`manifests/install.yaml`), with all of its permissions.
//!
//! The operator can delete only objects that it creates, and pods. It can get only one Secret, its
//! token key. An admission policy restricts its writes to objects of RLJobs.

mod admission_policy;

use serde_json::{Value, json};

use rljob_crds::names::{COORDINATOR_PORT, LABEL_ROLE};

use crate::desired::Role;
use crate::desired::meta::{OPERATOR_NAME, OPERATOR_NAMESPACE};

/// Secret with the token key. The operator creates it at its first start.
pub const TOKEN_KEY_SECRET: &str = "rljob-operator-token-key";
/// Image of the operator, and of roles without an image.
pub const DEFAULT_IMAGE: &str = "rljob:latest";
/// Port of `/metrics`, `/healthz` and `/readyz`.
pub const METRICS_PORT: u16 = 8082;

/// Every manifest, in the order of application.
pub fn manifests(image: &str) -> Vec<Value> {
    let account = format!("system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_NAME}");
    let key = (OPERATOR_NAMESPACE, TOKEN_KEY_SECRET);
    let [policy, policy_binding] = admission_policy::manifests(OPERATOR_NAME, &account, key);
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": OPERATOR_NAMESPACE,
            "labels": {
                "app.kubernetes.io/name": OPERATOR_NAME,
                "pod-security.kubernetes.io/enforce": "restricted",
            },
        } }),
        // Plain data with text keys always serializes.
        serde_json::to_value(rljob_crds::crd()).unwrap_or_default(),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(true) }),
        cluster_role(),
        binding("ClusterRole", false),
        own_role(),
        binding("Role", true),
        policy,
        policy_binding,
        deployment(image),
        disruption_budget(),
        service(),
        network_policy(),
    ]
}

/// The manifests as one YAML document stream.
///
/// # Errors
/// If a manifest cannot be serialized.
pub fn yaml(image: &str) -> Result<String, serde_yaml::Error> {
    let mut text = "# Installs the rljob operator. \
        Written by `UPDATE=1 cargo test -p rljob-operator install`.\n"
        .to_owned();
    for manifest in manifests(image) {
        text.push_str("---\n");
        text.push_str(&serde_yaml::to_string(&manifest)?);
    }
    Ok(text)
}

fn metadata(namespaced: bool) -> Value {
    let labels = json!({ "app.kubernetes.io/name": OPERATOR_NAME });
    if namespaced {
        json!({ "name": OPERATOR_NAME, "labels": labels, "namespace": OPERATOR_NAMESPACE })
    } else {
        json!({ "name": OPERATOR_NAME, "labels": labels })
    }
}

fn cluster_role() -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| -> Value {
        json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
    };
    let managed = ["get", "list", "watch", "create", "patch", "delete"];
    let rules = [
        rule("rljob.dev", &["rljobs"], &["list", "watch"]),
        rule("rljob.dev", &["rljobs/status"], &["update"]),
        // For owner references with blockOwnerDeletion, where admission checks them.
        rule("rljob.dev", &["rljobs/finalizers"], &["update"]),
        rule("apps", &["statefulsets"], &managed),
        rule("", &["services"], &managed),
        rule("networking.k8s.io", &["networkpolicies"], &managed),
        rule("policy", &["poddisruptionbudgets"], &managed),
        rule("", &["configmaps"], &managed),
        rule("", &["secrets"], &["create", "patch", "delete"]),
        // Deletes pods stuck in Terminating, and pods of hung engines.
        rule("", &["pods"], &["list", "watch", "delete"]),
        // Sets readiness gates of engines.
        rule("", &["pods/status"], &["patch"]),
        // Reads why pods do not start.
        rule("events.k8s.io", &["events"], &["create", "list"]),
    ];
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata(false),
        "rules": rules,
    })
}

/// Permissions in the operator's namespace: the token key and the Lease. Creation cannot be
/// restricted to a name; Secrets are created with the ClusterRole.
fn own_role() -> Value {
    let named = |group: &str, resource: &str, name: &str, verbs: &[&str]| {
        json!({
            "apiGroups": [group],
            "resources": [resource],
            "resourceNames": [name],
            "verbs": verbs,
        })
    };
    let rules = [
        named("", "secrets", TOKEN_KEY_SECRET, &["get"]),
        named("coordination.k8s.io", "leases", OPERATOR_NAME, &["get", "update"]),
        json!({
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["create"],
        }),
    ];
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(true),
        "rules": rules,
    })
}

fn binding(role: &str, namespaced: bool) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": format!("{role}Binding"),
        "metadata": metadata(namespaced),
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": OPERATOR_NAME },
        "subjects": [{
            "kind": "ServiceAccount",
            "name": OPERATOR_NAME,
            "namespace": OPERATOR_NAMESPACE,
        }],
    })
}

fn deployment(image: &str) -> Value {
    let labels = json!({ "app.kubernetes.io/name": OPERATOR_NAME });
    let affinity = json!({
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": { "matchLabels": labels },
        },
    });
    let pod = json!({
        "serviceAccountName": OPERATOR_NAME,
        // The default toleration keeps a pod on a lost node for 300 s.
        "tolerations": crate::desired::brief_tolerations(),
        "affinity": { "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [affinity],
        } },
        "securityContext": crate::desired::pod_security(),
        "containers": [container(image)],
    });
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(true), "spec": {
        // A leader and a standby.
        "replicas": 2,
        "strategy": { "type": "RollingUpdate" },
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": pod },
    } })
}

fn container(image: &str) -> Value {
    let probe = |path: &str| {
        json!({
            "httpGet": { "path": path, "port": "metrics" },
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        })
    };
    json!({
        "name": "operator",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [
            "/usr/local/bin/rljob-operator",
            format!("--image={image}"),
            format!("--listen=0.0.0.0:{METRICS_PORT}"),
            "--leader-elect",
        ],
        "ports": [{ "name": "metrics", "containerPort": METRICS_PORT }],
        "readinessProbe": probe("/readyz"),
        "livenessProbe": probe("/healthz"),
        "resources": {
            "requests": { "cpu": "100m", "memory": "64Mi" },
            "limits": { "memory": "256Mi" },
        },
        "securityContext": crate::desired::container_security(),
    })
}

fn disruption_budget() -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(true),
        "spec": {
            "minAvailable": 1,
            // A pod that cannot start does not block the drain of its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": { "matchLabels": { "app.kubernetes.io/name": OPERATOR_NAME } },
        },
    })
}

fn service() -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata(true), "spec": {
        "selector": { "app.kubernetes.io/name": OPERATOR_NAME },
        "ports": [{ "name": "metrics", "port": METRICS_PORT, "targetPort": "metrics" }],
    } })
}

/// The operator is scraped, and connects to DNS, the API server and coordinators.
fn network_policy() -> Value {
    let tcp = |port: u16| json!({ "port": port, "protocol": "TCP" });
    let coordinators = json!({
        "namespaceSelector": {},
        "podSelector": { "matchLabels": { LABEL_ROLE: Role::Coordinator.as_str() } },
    });
    let spec = json!({
        "podSelector": { "matchLabels": { "app.kubernetes.io/name": OPERATOR_NAME } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "ports": [tcp(METRICS_PORT)] }],
        "egress": [
            { "ports": [{ "port": 53, "protocol": "UDP" }, tcp(53)] },
            // The API server's port, as the Service has it and as endpoints have it.
            { "ports": [tcp(443), tcp(6443)] },
            { "to": [coordinators], "ports": [tcp(COORDINATOR_PORT)] },
        ],
    });
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(true),
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_manifests_are_up_to_date() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/install.yaml");
        let yaml = yaml(DEFAULT_IMAGE).unwrap();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &yaml).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            committed, yaml,
            "run `UPDATE=1 cargo test -p rljob-operator install` and review the difference"
        );
    }

    #[test]
    fn the_operator_can_delete_only_its_objects_and_get_only_its_token_key() {
        let role = cluster_role();
        for rule in role["rules"].as_array().unwrap() {
            let verbs = rule["verbs"].as_array().unwrap();
            assert!(verbs.iter().all(|verb| verb != "deletecollection" && verb != "*"), "{rule}");
            let made = [
                "statefulsets",
                "services",
                "networkpolicies",
                "poddisruptionbudgets",
                "configmaps",
                "secrets",
                "pods",
            ];
            let own = rule["resources"]
                .as_array()
                .unwrap()
                .iter()
                .all(|resource| made.iter().any(|made| resource == made));
            assert!(own || verbs.iter().all(|verb| verb != "delete"), "{rule}");
            let secrets =
                rule["resources"].as_array().unwrap().iter().any(|resource| resource == "secrets");
            assert!(
                !secrets
                    || verbs
                        .iter()
                        .all(|verb| verb == "create" || verb == "patch" || verb == "delete"),
                "{rule}"
            );
        }
    }
}
