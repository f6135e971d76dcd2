//! Objects of the chart for gangs.

use serde_json::{Value, json};

use super::render;
use super::values::{more_arguments, part};

/// Rules of the admission policy.
fn policy_rules(values: &Value) -> Vec<Value> {
    let objects = render(values);
    let policy =
        objects.iter().find(|object| object["kind"] == "ValidatingAdmissionPolicy").unwrap();
    let rules = &policy["spec"]["matchConstraints"]["resourceRules"];
    rules.as_array().unwrap().clone()
}

#[test]
fn gangs_need_a_flag_of_the_operator_and_permissions_of_their_schedulers() {
    let values = json!({"gangSchedulers": ["native", "volcano"]});
    assert_eq!(more_arguments(&values), json!(["--gang-schedulers=native,volcano"]));
    let in_one = json!({"gangSchedulers": ["coscheduling"], "jobs": {"namespace": "team-a"}});
    for (values, role, groups) in [
        (
            &values,
            "ClusterRole /rljob-operator",
            vec!["scheduling.k8s.io", "scheduling.volcano.sh"],
        ),
        (&in_one, "Role team-a/rljob-operator-jobs", vec!["scheduling.x-k8s.io"]),
    ] {
        let Value::Array(rules) = part(values, role, "/rules") else { panic!("no rules") };
        let of_gangs = rules.iter().filter(|rule| rule["resources"] == json!(["podgroups"]));
        let found: Vec<&Value> = of_gangs.map(|rule| &rule["apiGroups"][0]).collect();
        assert_eq!(found, groups);
        let policy = policy_rules(values).into_iter();
        let restricted: Vec<Value> =
            policy.filter(|rule| rule["resources"] == json!(["podgroups"])).collect();
        let expected = groups.iter().map(|group| {
            json!({
                "apiGroups": [group], "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE", "DELETE"], "resources": ["podgroups"],
            })
        });
        assert_eq!(restricted, expected.collect::<Vec<Value>>());
    }
    let without = render(&json!({}));
    assert!(without.iter().all(|object| !object.to_string().contains("podgroups")));
}
