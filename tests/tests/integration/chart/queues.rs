//! Objects of the chart for queues of Kueue, and the configuration of Kueue in docs/queues.md.

use serde_json::{Value, json};

use super::render;
use super::values::{more_arguments, part};
use crate::documents::objects_of;

const CRD: &str = "CustomResourceDefinition";

#[test]
fn queues_need_a_flag_of_the_operator_and_permissions() {
    let values = json!({"kueue": {"enabled": true}});
    assert_eq!(more_arguments(&values), json!(["--kueue"]));
    let in_one = json!({"kueue": {"enabled": true}, "jobs": {"namespace": "team-a"}});
    for (values, role, cluster_role) in [
        (&values, "ClusterRole /rljob-operator", "ClusterRole /rljob-operator-kueue"),
        (
            &in_one,
            "Role team-a/rljob-operator-jobs",
            "ClusterRole /rljob-operator-rljob-system-kueue",
        ),
    ] {
        let Value::Array(rules) = part(values, role, "/rules") else { panic!("no rules") };
        let resources: Vec<&Value> = rules
            .iter()
            .filter(|rule| rule["apiGroups"] == json!(["kueue.x-k8s.io"]))
            .map(|rule| &rule["resources"])
            .collect();
        assert_eq!(resources, [&json!(["workloads"]), &json!(["workloads/status"])]);
        assert_eq!(part(values, cluster_role, "/rules/0/resources"), json!(["resourceflavors"]));
    }
    let without = render(&json!({}));
    assert!(without.iter().all(|object| !object.to_string().contains("kueue")));
}

#[test]
fn the_configuration_of_kueue_in_the_documents_names_the_kind_of_the_crd() {
    let objects = objects_of("config.kueue.x-k8s.io/v1beta2");
    let crd = render(&json!({})).into_iter().find(|object| object["kind"] == CRD).unwrap();
    let text = |pointer: &str| crd.pointer(pointer).unwrap().as_str().unwrap();
    let [kind, version, group] =
        ["/spec/names/kind", "/spec/versions/0/name", "/spec/group"].map(text);
    let expected = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "integrations": {"externalFrameworks": [format!("{kind}.{version}.{group}")]},
    });
    let objects = objects.iter().map(|object| serde_yaml::from_str::<Value>(object).unwrap());
    assert_eq!(objects.collect::<Vec<_>>(), [expected]);
}
