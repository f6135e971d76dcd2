//! The manifests that install the operator, `manifests/install.yaml`: what it may do is written
//! here, and nothing else is.
//!
//! It may delete only what it makes, at the end of `ttlSecondsAfterFinished`, and pods, which else
//! go with their StatefulSet's size; it reads no Secret but its own key.

use serde_json::{Value, json};

/// Name of the operator's objects, and its pods' `app.kubernetes.io/name`.
pub const OPERATOR_NAME: &str = "rljob-operator";
/// Namespace that the operator is installed in.
pub const OPERATOR_NAMESPACE: &str = "rljob-system";
/// Secret that holds the key of all tokens; made by the operator when it starts for the first time.
pub const TOKEN_KEY_SECRET: &str = "rljob-operator-token-key";
/// Image of the operator and of every role that names none.
pub const DEFAULT_IMAGE: &str = "rljob:latest";
/// Port of `/metrics`, `/healthz` and `/readyz`.
pub const METRICS_PORT: u16 = 8082;

/// Every manifest, in the order in which it is to be applied.
pub fn manifests(image: &str) -> Vec<Value> {
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": OPERATOR_NAMESPACE,
            "labels": { "app.kubernetes.io/name": OPERATOR_NAME, "pod-security.kubernetes.io/enforce": "restricted" } } }),
        // Plain data with text keys; its serialization has no way to fail.
        serde_json::to_value(rljob_crds::crd()).unwrap_or_default(),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(true) }),
        cluster_role(),
        binding("ClusterRole", false),
        own_role(),
        binding("Role", true),
        deployment(image),
        disruption_budget(),
        service(),
    ]
}

/// The manifests as one YAML text.
///
/// # Errors
/// If a manifest cannot be written as YAML.
pub fn yaml(image: &str) -> Result<String, serde_yaml::Error> {
    let mut text = String::from(
        "# Installs the rljob operator. Written by `UPDATE=1 cargo test -p rljob-operator install`.\n",
    );
    for manifest in manifests(image) {
        text.push_str("---\n");
        text.push_str(&serde_yaml::to_string(&manifest)?);
    }
    Ok(text)
}

fn metadata(namespaced: bool) -> Value {
    let mut metadata =
        json!({ "name": OPERATOR_NAME, "labels": { "app.kubernetes.io/name": OPERATOR_NAME } });
    if namespaced {
        metadata["namespace"] = OPERATOR_NAMESPACE.into();
    }
    metadata
}

fn cluster_role() -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata(false), "rules": [
        rule("rljob.dev", &["rljobs"], &["list", "watch"]),
        rule("rljob.dev", &["rljobs/status"], &["update"]),
        // An owner reference with blockOwnerDeletion needs this where owner references are checked.
        rule("rljob.dev", &["rljobs/finalizers"], &["update"]),
        rule("apps", &["statefulsets"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", &["services"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("networking.k8s.io", &["networkpolicies"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("policy", &["poddisruptionbudgets"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", &["configmaps"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", &["secrets"], &["create", "patch", "delete"]),
        // Deletes pods that nobody ends, and those of engines that hang.
        rule("", &["pods"], &["list", "watch", "delete"]),
        // Readiness gates of engines.
        rule("", &["pods/status"], &["patch"]),
        rule("events.k8s.io", &["events"], &["create"]),
    ] })
}

/// In the operator's own namespace: reading one Secret by name, creating which is in the
/// ClusterRole; and the Lease of its leader. What creates an object cannot be restricted to a name.
fn own_role() -> Value {
    json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata(true), "rules": [
        { "apiGroups": [""], "resources": ["secrets"], "resourceNames": [TOKEN_KEY_SECRET], "verbs": ["get"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [OPERATOR_NAME], "verbs": ["get", "update"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] },
    ] })
}

fn binding(role: &str, namespaced: bool) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": format!("{role}Binding"),
        "metadata": metadata(namespaced),
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": OPERATOR_NAME },
        "subjects": [{ "kind": "ServiceAccount", "name": OPERATOR_NAME, "namespace": OPERATOR_NAMESPACE }],
    })
}

fn deployment(image: &str) -> Value {
    let labels = json!({ "app.kubernetes.io/name": OPERATOR_NAME });
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "metrics" }, "periodSeconds": 10, "timeoutSeconds": 5 });
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(true), "spec": {
        // A leader and a stand-by; a Lease says which is which.
        "replicas": 2,
        "strategy": { "type": "RollingUpdate" },
        "selector": { "matchLabels": labels },
        "template": {
            "metadata": { "labels": labels },
            "spec": {
                "serviceAccountName": OPERATOR_NAME,
                // Kubernetes would leave it on a lost node for 300 s.
                "tolerations": crate::desired::brief_tolerations(),
                "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                    "weight": 100, "podAffinityTerm": { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": labels } },
                }] } },
                "securityContext": crate::desired::pod_security(),
                "containers": [{
                    "name": "operator",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/usr/local/bin/rljob-operator", format!("--image={image}"), format!("--listen=0.0.0.0:{METRICS_PORT}"), "--leader-elect"],
                    "ports": [{ "name": "metrics", "containerPort": METRICS_PORT }],
                    "readinessProbe": probe("/readyz"),
                    "livenessProbe": probe("/healthz"),
                    "resources": { "requests": { "cpu": "100m", "memory": "64Mi" }, "limits": { "memory": "256Mi" } },
                    "securityContext": crate::desired::container_security(),
                }],
            },
        },
    } })
}

fn disruption_budget() -> Value {
    json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(true), "spec": {
        "minAvailable": 1,
        // One that cannot start keeps no node from being drained.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": { "matchLabels": { "app.kubernetes.io/name": OPERATOR_NAME } },
    } })
}

fn service() -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata(true), "spec": {
        "selector": { "app.kubernetes.io/name": OPERATOR_NAME },
        "ports": [{ "name": "metrics", "port": METRICS_PORT, "targetPort": "metrics" }],
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_manifests_are_what_the_code_says() {
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
    fn the_operator_may_delete_only_what_it_makes_and_read_no_secret_but_its_key() {
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
