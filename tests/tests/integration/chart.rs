//! The Helm chart as Helm renders it: objects of each switch, effects of each value, rejected
//! values, and manifests/install.yaml. `control_plane::releases` installs it.

use std::collections::BTreeSet;
use std::process::Command;

use rljob_tests::Helm;
use rljob_tests::files::workspace;
use rljob_tests::process::run;
use serde::Deserialize;
use serde_json::{Value, json};

mod documents;
mod gangs;
mod invalid;
mod notes;
mod queues;
mod scheduling;
pub(crate) mod schemas;
mod values;

/// Namespace of the rendered release.
const NAMESPACE: &str = "rljob-system";

/// `helm template` with these values.
fn template(values: &Value) -> anyhow::Result<String> {
    let helm = Helm::offline(NAMESPACE)?;
    let arguments = ["template", "rljob", &Helm::chart(), "--values=-"];
    helm.run_with_input(&arguments, &values.to_string())
}

/// The objects that the chart renders with these values.
pub(crate) fn render(values: &Value) -> Vec<Value> {
    let text = template(values).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&text);
    documents.map(|document| Value::deserialize(document).unwrap()).collect()
}

/// Kind, namespace and name of an object.
fn identity(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!(
        "{} {}/{}",
        object["kind"].as_str().unwrap_or_default(),
        text("namespace"),
        text("name")
    )
}

fn identities(values: &Value) -> BTreeSet<String> {
    render(values).iter().map(identity).collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(ToOwned::to_owned).into()
}

#[test]
fn the_default_release_manages_all_namespaces() {
    let expected = set([
        "ServiceAccount rljob-system/rljob-operator",
        "CustomResourceDefinition /rljobs.rljob.dev",
        "ClusterRole /rljob-operator",
        "ClusterRoleBinding /rljob-operator",
        "ClusterRole /rljob-view",
        "ClusterRole /rljob-edit",
        "ClusterRole /rljob-admin",
        "Role rljob-system/rljob-operator",
        "RoleBinding rljob-system/rljob-operator",
        "ValidatingAdmissionPolicy /rljob-operator",
        "ValidatingAdmissionPolicyBinding /rljob-operator",
        "Deployment rljob-system/rljob-operator",
        "PodDisruptionBudget rljob-system/rljob-operator",
        "Service rljob-system/rljob-operator",
        "NetworkPolicy rljob-system/rljob-operator",
    ]);
    assert_eq!(identities(&json!({})), expected);
}

#[test]
fn each_switch_adds_or_removes_its_objects() {
    let roles = ["ClusterRole /rljob-view", "ClusterRole /rljob-edit", "ClusterRole /rljob-admin"];
    let permissions = [
        "ClusterRole /rljob-operator",
        "ClusterRoleBinding /rljob-operator",
        "Role rljob-system/rljob-operator",
        "RoleBinding rljob-system/rljob-operator",
    ];
    let policy = [
        "ValidatingAdmissionPolicy /rljob-operator",
        "ValidatingAdmissionPolicyBinding /rljob-operator",
    ];
    let own = |kind: &str| format!("{kind} rljob-system/rljob-operator");
    let removed = [
        (json!({"crd": {"install": false}}), set(["CustomResourceDefinition /rljobs.rljob.dev"])),
        (json!({"userRoles": {"create": false}}), set(roles)),
        (json!({"rbac": {"create": false}}), set(permissions)),
        (json!({"admissionPolicy": {"enabled": false}}), set(policy)),
        (json!({"serviceAccount": {"create": false}}), [own("ServiceAccount")].into()),
        (json!({"networkPolicy": {"enabled": false}}), [own("NetworkPolicy")].into()),
        (json!({"podDisruptionBudget": {"enabled": false}}), [own("PodDisruptionBudget")].into()),
        (json!({"service": {"enabled": false}}), [own("Service")].into()),
    ];
    let default = identities(&json!({}));
    for (values, expected) in removed {
        let rendered = identities(&values);
        let gone: BTreeSet<String> = default.difference(&rendered).cloned().collect();
        assert_eq!((gone, rendered.is_subset(&default)), (expected, true), "{values}");
    }
    for (value, kind) in [("podMonitor", "PodMonitor"), ("prometheusRule", "PrometheusRule")] {
        let rendered = identities(&json!({value: {"enabled": true}}));
        let added: BTreeSet<String> = rendered.difference(&default).cloned().collect();
        assert_eq!((added, default.is_subset(&rendered)), ([own(kind)].into(), true), "{value}");
    }
    let scrapers = json!({"scrapers": {"namespaceSelector": {"team": "monitoring"}}});
    let of_jobs = identities(&json!({"podMonitor": {"jobs": true}, "jobs": scrapers}));
    let added: Vec<&String> = of_jobs.difference(&default).collect();
    assert_eq!(added, ["PodMonitor rljob-system/rljob-operator-jobs"]);
}

#[test]
fn a_release_for_one_namespace_has_roles_instead_of_cluster_roles() {
    let namespaced = |namespace: &str| {
        let values = json!({
            "jobs": {"namespace": namespace},
            "crd": {"install": false}, "userRoles": {"create": false},
        });
        identities(&values)
    };
    let common = [
        "ServiceAccount rljob-system/rljob-operator",
        "Role rljob-system/rljob-operator",
        "RoleBinding rljob-system/rljob-operator",
        "ValidatingAdmissionPolicy /rljob-operator-rljob-system",
        "ValidatingAdmissionPolicyBinding /rljob-operator-rljob-system",
        "Deployment rljob-system/rljob-operator",
        "PodDisruptionBudget rljob-system/rljob-operator",
        "Service rljob-system/rljob-operator",
        "NetworkPolicy rljob-system/rljob-operator",
    ];
    for namespace in ["team-a", NAMESPACE] {
        let mut expected = set(common);
        expected.extend(
            ["Role", "RoleBinding"].map(|kind| format!("{kind} {namespace}/rljob-operator-jobs")),
        );
        assert_eq!(namespaced(namespace), expected);
    }
}

#[test]
fn components_are_rendered_from_the_chart() {
    for name in ["dashboards", "kueue", "pod-monitor", "pod-monitor-jobs", "prometheus-rule"] {
        let script = workspace().join("scripts/component_manifest.sh");
        let rendered = run(Command::new(script).arg(name)).unwrap();
        let path = workspace().join(format!("manifests/components/{name}/objects.yaml"));
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(committed, rendered, "{name}: run `make manifests` and review the difference");
    }
}

#[test]
fn install_yaml_is_rendered_from_the_chart() {
    let rendered = run(&mut Command::new(workspace().join("scripts/install_manifest.sh"))).unwrap();
    let path = workspace().join("manifests/install.yaml");
    let committed = std::fs::read_to_string(path).unwrap();
    assert_eq!(committed, rendered, "run `make manifests` and review the difference");
}
