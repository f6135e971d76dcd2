//! Values of the chart that place operator pods, beside what the API server accepts.

use serde_json::{Value, json};

use super::template;

#[test]
fn settings_of_scheduling_are_rejected_as_the_api_server_does() {
    let toleration = |value: Value| json!({"tolerations": [value]});
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let affinity = |kind: &str, terms: Value| json!({"affinity": {kind: {preferred: terms}}});
    let spread = |value: Value| json!({"topologySpreadConstraints": [value]});
    let term = json!({"weight": 1, "podAffinityTerm": {"labelSelector": {}}});
    let cases = [
        (toleration(json!({"keys": "gpu"})), "additional properties 'keys' not allowed"),
        (toleration(json!({"key": "gpu", "operator": "Is"})), "0/operator': value must be one of"),
        (toleration(json!({"key": "gpu", "effect": "No"})), "0/effect': value must be one of"),
        (toleration(json!({"operator": "Equal"})), "'/tolerations/0': missing property 'key'"),
        (
            toleration(json!({"key": "gpu", "operator": "Exists", "value": "a"})),
            "'/tolerations/0/value': maxLength: got 1, want 0",
        ),
        (
            toleration(json!({"key": "gpu", "effect": "NoSchedule", "tolerationSeconds": 5})),
            "'/tolerations/0/effect': value must be 'NoExecute'",
        ),
        (json!({"affinity": {"nodeAffinity": {"a": 1}}}), "additional properties 'a' not allowed"),
        (affinity("podAffinity", json!([term])), "missing property 'topologyKey'"),
        (affinity("nodeAffinity", json!([{"weight": 0}])), "weight': minimum: got 0, want 1"),
        (spread(json!({"maxSkew": 1, "topologyKey": "a"})), "missing property 'whenUnsatisfiable'"),
        (spread(json!({"maxskew": 1})), "additional properties 'maxskew' not allowed"),
    ];
    for (values, reason) in cases {
        let answer = template(&values);
        let message = format!("{:#}", answer.expect_err(&format!("accepted: {values}")));
        assert!(message.contains(reason), "{values}: not {reason:?}:\n{message}");
    }
}
