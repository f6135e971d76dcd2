//! Names, ports and image that the operator shares with its chart (`charts/rljob`) and with
//! `manifests/install.yaml`, which is rendered from the chart.

/// Secret with the token key. The operator creates it at its first start.
pub const TOKEN_KEY_SECRET: &str = "rljob-operator-token-key";
/// Image of the operator, and of roles without an image.
pub const DEFAULT_IMAGE: &str = concat!("rljob:", env!("CARGO_PKG_VERSION"));
/// Port of `/metrics`, `/healthz` and `/readyz`.
pub const METRICS_PORT: u16 = 8082;

#[cfg(test)]
mod tests {
    use rljob_crds::names::{COORDINATOR_PORT, LABEL_ROLE};
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;
    use crate::desired::meta::{OPERATOR_NAME, OPERATOR_NAMESPACE};
    use crate::desired::{Role, brief_tolerations, container_security, pod_security};

    /// The object of a kind and name in manifests/install.yaml.
    fn manifest(kind: &str, name: &str) -> Value {
        let text = include_str!("../../manifests/install.yaml");
        let objects = serde_yaml::Deserializer::from_str(text)
            .map(|document| Value::deserialize(document).unwrap());
        let found: Vec<Value> = objects
            .filter(|object| object["kind"] == kind && object["metadata"]["name"] == name)
            .collect();
        assert_eq!(found.len(), 1, "{kind} {name}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn the_deployment_starts_the_operator_with_its_image_and_port() {
        let deployment = manifest("Deployment", OPERATOR_NAME);
        assert_eq!(deployment["metadata"]["namespace"], OPERATOR_NAMESPACE);
        let pod = &deployment["spec"]["template"];
        assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/name"], OPERATOR_NAME);
        assert_eq!(pod["spec"]["securityContext"], json!(pod_security()));
        assert_eq!(pod["spec"]["tolerations"], json!(brief_tolerations()));
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["image"], DEFAULT_IMAGE);
        assert_eq!(
            container["command"],
            json!([
                "/usr/local/bin/rljob-operator",
                format!("--image={DEFAULT_IMAGE}"),
                format!("--listen=[::]:{METRICS_PORT}"),
                "--leader-elect",
            ])
        );
        assert_eq!(
            container["ports"],
            json!([{ "name": "metrics", "containerPort": METRICS_PORT }])
        );
        assert_eq!(container["securityContext"], json!(container_security()));
    }

    #[test]
    fn the_network_policy_admits_scrapes_and_connections_to_coordinators() {
        let policy = manifest("NetworkPolicy", OPERATOR_NAME);
        let tcp = |port: u16| json!([{ "port": port, "protocol": "TCP" }]);
        assert_eq!(policy["spec"]["ingress"], json!([{ "ports": tcp(METRICS_PORT) }]));
        let coordinators = json!({
            "namespaceSelector": {},
            "podSelector": { "matchLabels": { LABEL_ROLE: Role::Coordinator.as_str() } },
        });
        assert_eq!(
            policy["spec"]["egress"][2],
            json!({ "to": [coordinators], "ports": tcp(COORDINATOR_PORT) })
        );
    }

    #[test]
    fn the_role_names_the_token_key_and_the_lease() {
        let rules = manifest("Role", OPERATOR_NAME)["rules"].take();
        let names = |index: usize| rules[index]["resourceNames"].clone();
        assert_eq!([names(0), names(1)], [json!([TOKEN_KEY_SECRET]), json!([OPERATOR_NAME])]);
    }

    #[test]
    fn the_operator_can_delete_only_its_objects_and_get_only_its_token_key() {
        let role = manifest("ClusterRole", OPERATOR_NAME);
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
